"""What "Blazingly Fast LLM Inference Framework on Arm Devices" prints (sections IV.D, V.A to V.D), as data.

Qwen 1.8B: l tokens of a prompt, hidden size h, inner size i, v words, L positions of a cache in decode.
"""

MODEL = "qwen-1.8b"
BLOCKS, HEADS = 24, 16
TOKENS, HIDDEN, INNER, WORDS, POSITIONS = 560, 2048, 5504, 151_936, 585
PRODUCTS = {  # of a block: what goes in, what comes out
    "attn/c_attn": (HIDDEN, 3 * HIDDEN), "attn/c_proj": (HIDDEN, HIDDEN), "mlp/w1": (HIDDEN, INNER),
    "mlp/w2": (HIDDEN, INNER), "mlp/c_proj": (INNER, HIDDEN),
}  # fmt: skip
HEAD = ("Lm", (HIDDEN, WORDS))

BANDWIDTH = 99.274e9  # bytes a second; printed as Gbps
SMMLA, SDOT, FMLA = 2784e9, 2784e9, 352e9  # operations a second
FMLA_16 = 2 * FMLA  # of float16, in which section IV.F computes attention; not printed

# FLOP and bytes of V.B, in "G", for prefill and decode.
LINEAR = {"prefill": (1591.13, 1.74), "decode": (2.84, 0.71)}
ATTENTION = {"prefill": (57.57, 0.58), "decode": (0.11, 0.21)}
OTHER = {"prefill": 10.2539, "decode": 0.01831}
SPEED = {"prefill": (668.31, 638.03), "decode": (105.26, 99.31)}  # tokens a second: peak, measured
GAINS = {  # of V.C, in percent: prefill, decode
    "attention fused": (34.62, 300.54), "int4 to uint4": (10.91, 113.66), "weights transposed before": (12.02, 7.5),
}  # fmt: skip
G = 2**30

ERRORS = (
    "FLOP and bytes are in units of 2^30, the rates they are divided by in units of 10^9: the peak is 7 % too fast",
    "the head is counted for all 560 tokens of a prompt, of which the last one's logits are asked for",
    "other operators move 400 l h bytes by the integers, 200 l h by the text",
    "decode's linear layers have 0.71 G of bytes in the table, 0.74 in the intensity (2.84 / 0.74 = 3.84)",
    "99.274 Gbps are GB/s",
    "the formula of accesses lacks what it counts: e/ep h/hp tiles, each of l hp + l ep + hp ep",
    "sdot and smmla have one rate, 2784, where smmla is said to be twice sdot; it is 7.9 times fmla, said to be four",
    "fmla's 352 is of float32, attention computes in float16: 704",
    "linear layers are 68 % of prefill by the paper's own counts, not over 93 %",
    "weights are read e times and inputs h times; printed the other way round",
    "softmax has 22 l l operations and 24 l l bytes for each of 16 heads, not for all together",
    "8 L h in decode reads keys and values in float32, or twice; the fused operator reads them once in float16",
    "10 h + 4 i bytes are one number of 16 bits a channel: neither scales of blocks nor zeros of asymmetric weights",
    "of pairs that are packed first, [n, 16, 2] transposed to [n, 2, 16] is another order: halves have to be 16 apart",
    "the block of sdot is 8 x 4, so pack is not hp for it",
    "Table I: on hellaswag, quantization-aware training is 0.79 points below what it is compared with",
    "the listing is of 8 x 8; the formula, in registers, gives 10 x 8",
    "113.66 % in decode cannot come of a subtraction: the loop has 12 instructions a step with it and 8 without",
)
