"""A host script, as for the machine itself: `meshrt csl run examples/csl/gemv -- bash run.sh`."""

import json
import sys

import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
from cerebras.sdk.sdk_utils import input_array_to_u32, memcpy_view

with open(f"{sys.argv[1]}/out.json") as file:
    params = {name: int(value) for name, value in json.load(file)["params"].items()}
m, k, height = params["m"], params["k"], params["height"]
A = np.random.default_rng(1).random((m, k * height)).astype(np.float16)
x = np.random.default_rng(2).random(k * height).astype(np.float16)

runner = SdkRuntime(sys.argv[1])
how = {
    "streaming": False,
    "order": MemcpyOrder.ROW_MAJOR,
    "data_type": MemcpyDataType.MEMCPY_16BIT,
    "nonblock": False,
}
runner.load()
runner.run()
columns = np.ascontiguousarray(A.T)
runner.memcpy_h2d(runner.get_id("A"), input_array_to_u32(columns, None, 1), 0, 0, 1, height, k * m, **how)
runner.memcpy_h2d(runner.get_id("x"), input_array_to_u32(x, None, 1), 0, 0, 1, height, k, **how)
runner.launch("compute", nonblock=False)
words = np.zeros(m, np.uint32)
runner.memcpy_d2h(words, runner.get_id("y"), 0, height - 1, 1, 1, m, **how)
runner.stop()
y = memcpy_view(words, np.dtype(np.float16))
np.testing.assert_allclose(y, A.astype(float) @ x.astype(float), rtol=5e-3)
print("SUCCESS!")
