"""The numbers of a GPU and of what connects it to others. presets.py has those that there are."""

from dataclasses import fields, replace

from meshrt.errors import UsageError
from meshrt.records import dataclass
from meshrt.reports.energy import Range, check_range


@dataclass(frozen=True)
class Protocol:
    """A way to send round a ring: what a collective and each of its steps take beside the bytes, in seconds, and the
    share of the link's bandwidth that its bytes get."""

    name: str
    seconds: float
    step_seconds: float
    share: float


# NCCL's, in the same words: small messages carry their own flags, which costs bandwidth and saves waiting.
NVLINK = (
    Protocol("LL", 6.6e-6, 0.6e-6, 0.5), Protocol("LL128", 14.0e-6, 1.9e-6, 0.92), Protocol("Simple", 8.4e-6, 3.4e-6, 1)
)  # fmt: skip
LINKS = ("nvlink", "pcie", "network")
PCIE = (Protocol("LL", 6.6e-6, 1.0e-6, 0.5), Protocol("Simple", 8.4e-6, 5.7e-6, 1))
NETWORK = (Protocol("LL", 42.5e-6, 0.755e-6, 0.188), Protocol("Simple", 35.3e-6, 19.7e-6, 1))

ENERGY = ("memory_picojoules", "mac_picojoules", "link_picojoules", "idle_watts")
LEAST, MOST = 1e-15, 1e18  # of any number of a device: times that are made of them stay finite


@dataclass(frozen=True, kw_only=True)
class GpuDevice:
    """A GPU in a node. Sizes are bytes, rates per second, times seconds. Of links, one direction."""

    name: str
    memory_bytes: int
    memory_bytes_per_second: float
    memory_share: float  # of that rate that kernels reach
    flops: float  # of the tensor cores, on dense 16-bit matrices
    flops_share: float  # of those that kernels reach
    sms: int
    hertz: float  # of an SM
    sm_rate: float  # what an SM does in a cycle, in kernels other than products, beside an A100's
    sm_l2_bytes_per_second: float  # from the L2 cache to one SM, in a product
    sm_memory_bytes_per_second: float  # from memory to one SM: what it has under way, over the memory's latency
    l2_bytes: int
    product_seconds: float  # that a product takes more: its first tiles have to arrive, and its last to leave
    split_seconds: float  # and where its inner dimension is cut: parts have to be added up
    link: str  # of LINKS: which of the following is in use
    nvlink_bytes_per_second: float
    nvlink_gpus: int  # that NVLink can join
    nvlink_protocols: tuple[Protocol, ...] = NVLINK
    nvlink_pair_bytes_per_second: float | None = None  # where each pair has a link of its own, in place of switches
    pcie_bytes_per_second: float = 20e9
    pcie_protocols: tuple[Protocol, ...] = PCIE
    network_bytes_per_second: float = 5.91e9  # between nodes, of one adapter
    network_protocols: tuple[Protocol, ...] = NETWORK
    node_gpus: int = 8  # of a run in one node, where it is over several; each has an adapter of its own,
    node_adapters: int = 4  # of which a node has no more than these
    launch_seconds: float = 5e-6  # that the host is busy with a kernel's launch
    step_seconds: float = 0.0  # that an engine's host needs between two steps of a batch, while the device waits
    graph_launch_seconds: float = 10e-6  # the same for a graph of kernels
    kernel_seconds: float = 0.23e-6  # between a kernel and the next one on the device
    start_seconds: float = 1.76e-6  # that the smallest kernel takes
    memory_picojoules: Range | None = None  # a bit to or from memory; of these and the next: lowest and highest
    mac_picojoules: Range | None = None  # a 16-bit multiply-accumulate of a product, with all that leads to it
    link_picojoules: Range | None = None  # a bit from a GPU to another, over the link that is in use
    idle_watts: Range | None = None  # of a GPU, all the time
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not (LEAST <= value <= MOST or value == field.default == 0):
                raise UsageError(f"device {self.name}: {field.name} is {value}; it is {LEAST:g} to {MOST:g}")
            if field.name in ENERGY:
                check_range(self.name, field.name, value)

    def joined(self, gpus: int) -> "GpuDevice":
        """The same for groups of so many: where each pair has a link, rings get those to all others."""
        pair = self.nvlink_pair_bytes_per_second
        return self if pair is None else replace(self, nvlink_bytes_per_second=max(1, gpus - 1) * pair)

    @property
    def link_bytes_per_second(self) -> float:
        """Of the slowest link of a ring, which is what a ring gets."""
        if self.link == "network":
            return min(self.node_gpus, self.node_adapters) * self.network_bytes_per_second
        return self.nvlink_bytes_per_second if self.link == "nvlink" else self.pcie_bytes_per_second

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """Of the link that is in use."""
        return {"nvlink": self.nvlink_protocols, "pcie": self.pcie_protocols, "network": self.network_protocols}[
            self.link
        ]

    @property
    def neighbours(self) -> bool:
        """Do links join each GPU to the next alone? NVLink, through its switches, joins all."""
        return self.link != "nvlink"

    def protocol(self, steps: int, chunk: float) -> Protocol:
        """The one that is the fastest for a collective of so many steps with chunks of so many bytes; NCCL decides so
        too, before it sends anything."""
        rate = self.link_bytes_per_second
        return min(
            self.protocols,
            key=lambda protocol: protocol.seconds + steps * (protocol.step_seconds + chunk / (protocol.share * rate)),
        )
