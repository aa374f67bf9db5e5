"""ONNX graphs, read, simplified and recognised: only `meshrt import` needs the libraries for it, no rank does."""
