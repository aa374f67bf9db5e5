"""The C sources of a checkout as a number, which is compiled in: whether a compiled core is of this checkout.

The build loads this file by itself (ci/backend), so it imports nothing of meshrt.
"""

import zlib
from functools import cache
from pathlib import Path

FOLDERS = ("csl/native", "mesh", "mesh/exchange", "mesh/wires", "ranks")  # of the package, with C sources


@cache
def checksum(package: Path) -> int | None:
    """Of all C sources of the package in that folder; None where there are none, as where a wheel was installed."""
    files = sorted(file for folder in FOLDERS for file in (package / folder).glob("*.[ch]"))
    if not files:
        return None
    number = 0
    for file in files:
        number = zlib.crc32(file.read_bytes(), zlib.crc32(file.name.encode(), number))
    return number
