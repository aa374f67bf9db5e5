#!/usr/bin/env bash
set -e
cslc --arch=wse3 layout.csl --params=m:"${1:-5}",k:"${2:-3}",height:"${3:-4}" -o out --memcpy --channels 1
cs_python run.py out
