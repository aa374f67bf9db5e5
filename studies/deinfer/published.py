"""What DeInfer (DAC 2026) publishes: Tables 1 and 3 to 6, and what the text says of Figures 1, 5 to 7.

A dagger marks DeInfer with the low-rank cache. Times in ms, throughputs in tokens a second.
"""

MODELS = {"llama3-70b": "LLaMA-3-70B", "llama-65b": "LLaMA-65B", "opt-30b": "OPT-30B"}
SYSTEMS = ("Base", "DeInfer", "DeInfer†")
TPS = (2, 4, 8)
LINKS = {"pcie": "w/o NVLink", "nvlink": "w/ NVLink"}
RATIO = 0.4

# Table 1, LLaMA-3-70B: numbers a token and layer, all-gather once and reduce-sum twice. The last row is the sum as
# printed; of the two reduce-sums of DeInfer's own rows, 4h in all, it has 2h.
TABLE1 = {"Base": 167_936, "DeInfer": 37_276}

# Table 3, on 8 A6000 without NVLink: (TTFT, ITL) by model and system.
TABLE3 = {
    "llama3-70b": {"Base": (21740, 812), "DeInfer": (3633, 172), "DeInfer†": (3703, 211)},
    "llama-65b": {"Base": (19341, 764), "DeInfer": (3489, 181), "DeInfer†": (3626, 312)},
    "opt-30b": {"Base": (6999, 311), "DeInfer": (1594, 101), "DeInfer†": (1704, 190)},
}

# Table 4, on A800: TTFT and ITL by link, model and system, for 2, 4 and 8 GPUs.
TABLE4 = {
    ("TTFT", "pcie"): {
        "llama3-70b": {
            "Base": (8950, 10064, 10764), "DeInfer": (2137, 2110, 2246), "DeInfer†": (2484, 2102, 2093),
        },
        "llama-65b": {"Base": (8164, 9359, 10451), "DeInfer": (2192, 2088, 1812), "DeInfer†": (2216, 1840, 2085)},
        "opt-30b": {"Base": (3126, 3566, 3845), "DeInfer": (960, 927, 944), "DeInfer†": (940, 878, 906)},
    },
    ("ITL", "pcie"): {
        "llama3-70b": {"Base": (156, 122, 96), "DeInfer": (108, 88, 87), "DeInfer†": (143, 115, 105)},
        "llama-65b": {"Base": (206, 103, 101), "DeInfer": (115, 91, 88), "DeInfer†": (660, 354, 216)},
        "opt-30b": {"Base": (54, 47, 47), "DeInfer": (57, 47, 46), "DeInfer†": (283, 154, 101)},
    },
    ("TTFT", "nvlink"): {
        "llama3-70b": {"Base": (1662, 1499, 1605), "DeInfer": (1463, 983, 797), "DeInfer†": (1377, 948, 817)},
        "llama-65b": {"Base": (1525, 1417, 1461), "DeInfer": (1162, 875, 749), "DeInfer†": (1214, 901, 782)},
        "opt-30b": {"Base": (724, 654, 649), "DeInfer": (581, 448, 443), "DeInfer†": (640, 514, 457)},
    },
    ("ITL", "nvlink"): {
        "llama3-70b": {"Base": (156, 115, 93), "DeInfer": (90, 76, 78), "DeInfer†": (127, 96, 93)},
        "llama-65b": {"Base": (191, 98, 94), "DeInfer": (92, 64, 56), "DeInfer†": (642, 330, 184)},
        "opt-30b": {"Base": (50, 42, 41), "DeInfer": (50, 37, 33), "DeInfer†": (276, 146, 86)},
    },
}  # fmt: skip

# Table 5, a layer of LLaMA-3-70B on A800: compute and communication, by link, number of GPUs and system.
TABLE5 = {
    "pcie": {
        2: {"Base": (2.352, 12.182), "DeInfer": (1.809, 0.977)},
        4: {"Base": (1.174, 14.853), "DeInfer": (1.038, 1.156)},
        8: {"Base": (1.112, 16.051), "DeInfer": (0.787, 1.285)},
    },
    "nvlink": {
        2: {"Base": (2.391, 0.891), "DeInfer": (1.792, 0.232)},
        4: {"Base": (1.176, 1.240), "DeInfer": (1.041, 0.267)},
        8: {"Base": (1.116, 1.369), "DeInfer": (0.782, 0.247)},
    },
}

# Table 6, DeInfer† on 8 A800: without and with static graphs, by model and link. s1, s2: tokens a second; ITL: ms.
TABLE6 = {
    "llama3-70b": {
        "pcie": {"s1": (2068, 2168), "s2": (816, 978), "ITL": (118, 114)},
        "nvlink": {"s1": (3488, 3834), "s2": (831, 1379), "ITL": (97, 93)},
    },
    "llama-65b": {
        "pcie": {"s1": (1435, 1477), "s2": (552, 587), "ITL": (279, 202)},
        "nvlink": {"s1": (2011, 2217), "s2": (660, 713), "ITL": (249, 173)},
    },
}

# Section 5.5: DeInfer over Base in throughput, LLaMA-3-70B on 8 A800 at a compression ratio of 60 %.
SPEEDUP = {"nvlink": 2.25, "pcie": 8.81}
RATIOS = (0.2, 0.3, 0.4, 0.5, 0.6)

# Sections 5.2 and 5.3: requests, prompt tokens, new tokens; in a batch of all of them.
LOADS = {
    "s1": {"llama3-70b": (512, 32, 128), "llama-65b": (512, 32, 128), "opt-30b": (768, 32, 128)},
    "s2": {"llama3-70b": (64, 64, 448), "llama-65b": (64, 64, 448), "opt-30b": (192, 64, 448)},
    "serving": dict.fromkeys(MODELS, (128, 32, 256)),
}
