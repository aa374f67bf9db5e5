"""What NeuronMM (2025) prints in its Tables 1, 3, 4, 6 and 7 and says of Figure 6, as data.

Bytes: the paper's GB are GiB and its MB are MiB. Table 3's 2.47 for the fused kernel is eq. 10 in GiB (2.46; 2.64 in
10^9 bytes). The intensities of Table 4 where there are spills, 1280.50 and 512.95, are its operations over eq. 10's
traffic with the spills as MiB; as 10^6 bytes they would come to 1284.25 and 531.41. Table 1 has nothing to decide by
and is read as Table 4 is.
"""

from dataclasses import dataclass

from meshrt.neuron.device import GIB, MIB

NAMES = {"dense": "NKI XW", "sequential": "NKI XUV", "naive": "naive fusion", "fused": "NeuronMM"}

# Section 3.2, Table 1: x [2048, 2048], u [2048, 2048], v [2048, 8192], B_N = 512.
TABLE1_SIZES = {"m": 2048, "k": 2048, "r": 2048, "n": 8192, "block_n": 512}


@dataclass(frozen=True)
class PublishedKernel:
    """What a table says of a kernel. Seconds, bytes, operations, shares of 1; None: the table has no such column."""

    seconds: float
    flops: float | None = None
    hbm_bytes: float | None = None
    active: float | None = None  # share of the time in which the tensor engine works
    mfu: float | None = None
    transpose_flops: float | None = None
    intensity: float | None = None  # operations a byte
    sbuf: float | None = None  # share of SBUF
    reloaded: float | None = None
    saved: float | None = None


TABLE1 = {
    "sequential": PublishedKernel(1.57e-3, 85.90e9, 298.66 * MIB),
    "naive": PublishedKernel(18.06e-3, 343.60e9, 3140.42 * MIB),
}

# Section 5.2, Table 3 and Figure 6: x [M, 8192], w [8192, 16384], u [8192, 4096], v [4096, 16384], result transposed.
SIZES = {"k": 8192, "r": 4096, "n": 16384}
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
TABLE3 = {
    "dense": PublishedKernel(57.89e-3, 2.96e12, 9.93 * GIB, 0.7852, 0.6409, 68.01e9),
    "sequential": PublishedKernel(37.47e-3, 2.18e12, 6.52 * GIB, 0.8128, 0.6524, 78.92e9),
    "fused": PublishedKernel(27.63e-3, 2.18e12, 2.47 * GIB, 0.9921, 0.8520, 22.55e9),
}
LONGEST = {"dense": 186.60e-3, "fused": 84.15e-3}  # seconds at M = 32768
SPEEDUPS = {"dense": 2.09, "sequential": 1.35}  # of the fused kernel, on average
TRAFFIC = {"sequential": 2.64}  # times as much as the fused kernel's, on average
LONGEST_TRAFFIC = {"dense": 4.78}  # at M = 32768, as the sentence reads

# Section 5.3, Table 4: x [4096, 7168], u [7168, 4096], v [4096, 18432], by B_M.
TABLE4_SIZES = {"m": 4096, "k": 7168, "r": 4096, "n": 18432}
TABLE4 = {
    128: PublishedKernel(31.25e-3, intensity=124.12, sbuf=0.1954, reloaded=0, saved=0),
    256: PublishedKernel(16.02e-3, intensity=240.94, sbuf=0.5169, reloaded=0, saved=0),
    512: PublishedKernel(11.02e-3, intensity=455.10, sbuf=0.8007, reloaded=0, saved=0),
    1024: PublishedKernel(10.99e-3, intensity=819.17, sbuf=0.9005, reloaded=0, saved=0),
    2048: PublishedKernel(11.07e-3, intensity=1280.50, sbuf=0.9635, reloaded=29.19 * MIB, saved=10.53 * MIB),
    4096: PublishedKernel(12.50e-3, intensity=512.95, sbuf=0.9896, reloaded=931.00 * MIB, saved=266.00 * MIB),
}

# Table 6: [in, out] of a matrix of Llama-3.2-1B, and the rank of its factors at compression ratio 0.2.
MODEL = "llama3.2-1b"
TABLE6_RATIO, TABLE6_BLOCK = 0.2, 128
TABLE6 = {"up": (2048, 8192, 1280), "gate": (2048, 8192, 1280), "down": (8192, 2048, 1280)}


@dataclass(frozen=True)
class Serving:
    """A row of Table 7: seconds from end to end, tokens a second (those of the prompt count: 2048 / 41.22 = 49.68),
    seconds to the first token and for each other one.
    """

    latency: float
    throughput: float
    ttft: float
    tpot: float | None = None


# Table 7: one request, 1024 tokens in and 1024 out, by compression ratio. The text that this is from has lost a column:
# what stands under TTFT is the throughput, under TPOT the TTFT. Section 5.4.4 says so for the first and last row, and
# has their TPOT; the others' is missing.
TOKENS = 1024
TABLE5 = {  # average end-to-end speed-up, by compression ratio
    "llama3.2-1b": {0.1: 1.21, 0.2: 1.63},
    "llama3.2-3b": {0.1: 1.88, 0.2: 2.49},
    "qwen3-1.7b": {0.1: 1.41, 0.2: 1.74},
    "qwen3-4b": {0.1: 1.28, 0.2: 1.67},
}
TABLE7 = {
    0.0: Serving(41.22, 49.69, 82.22e-3, 39.65e-3),
    0.05: Serving(33.76, 60.67, 74.18e-3),
    0.1: Serving(30.45, 67.25, 71.41e-3),
    0.15: Serving(24.90, 82.25, 63.07e-3),
    0.2: Serving(22.14, 92.52, 61.20e-3, 20.41e-3),
}
