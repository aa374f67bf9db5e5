from collections.abc import Callable

import numpy as np

def settle(native: Callable[[int, int, int], bool], *arrays: np.ndarray) -> int: ...
