import numpy as np

def give(
    times: np.ndarray, busy: float, free: np.ndarray, asked_at: np.ndarray, idle: np.ndarray
) -> tuple[int, float]: ...
def replay(
    steps: np.ndarray, landing: np.ndarray, busy: float, alpha: float, watch: bool
) -> tuple[int, float, int]: ...
def serve(
    free: np.ndarray, asked_at: np.ndarray, idle: np.ndarray, *packets: np.ndarray | float
) -> tuple[int, float]: ...
