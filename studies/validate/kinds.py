"""All kinds of measurements that there are; a file is of the first whose columns it has."""

from meshrt.studies.validate.gpuallreduce import ALLREDUCE
from meshrt.studies.validate.gpulayers import LAYERS
from meshrt.studies.validate.kind import MeasurementKind
from meshrt.studies.validate.meshproducts import GEMM, GEMV

KINDS: tuple[MeasurementKind, ...] = (GEMM, GEMV, LAYERS, ALLREDUCE)
