"""What serves a model on GPUs, by the time of its host."""

from meshrt.records import dataclass


@dataclass(frozen=True)
class Framework:
    """What a framework's host needs for a launch, and an engine of it between two steps."""

    launch_seconds: float
    step_seconds: float
    source: str


FRAMEWORKS = {
    "cuda": Framework(5e-6, 0.0, "4 to 6 us in 'From Launch Overhead to CUDA Graph' (susun-blog.com, pegainfer 3)"),
    "vllm": Framework(
        20e-6, 5e-3,
        "eager less recorded is 0.34 ms a layer on A800 (vllm-omni issue 7960), 0.30 on A100 (metaseq pull request "
        "270), 0.10 on H100: 5 to 19 us for each of our launches beyond what the device hides, so 10 to 25; 4 ms, and "
        "5 to 13, of an idle GPU in each decoding step (vllm issue 6854, July 2024)",
    ),
}  # fmt: skip
