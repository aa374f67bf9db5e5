"""All kinds of measurements that there are; a file is of those whose columns it has."""

from meshrt.studies.validate.gpuallreduce import ALLREDUCE
from meshrt.studies.validate.gpulayers import LAYERS
from meshrt.studies.validate.kind import MeasurementKind
from meshrt.studies.validate.meshproducts import GEMM, GEMV
from meshrt.studies.validate.neuronmodels import FIRST_TOKEN, TOKEN

KINDS: tuple[MeasurementKind, ...] = (GEMM, GEMV, LAYERS, ALLREDUCE, TOKEN, FIRST_TOKEN)
