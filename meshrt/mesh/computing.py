"""What cores compute, counted and timed: products of tiles, element-wise operations, software."""

from collections.abc import Iterable
from math import prod

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.cores import Cores
from meshrt.mesh.device import VECTOR_OPERANDS
from meshrt.mesh.products import Made, product


class Computing(Cores):
    """A rank's cores with what they can be asked to compute. What moves packets needs none of it."""

    def matmul(
        self, a: np.ndarray, b: np.ndarray | Made, total: np.ndarray | None = None, over: int | None = None,
        cores: np.ndarray | None = None, down: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Every core multiplies its tiles: [.., m, k] @ [.., k, n] -> float32 [.., m, n], counted and timed.

        Leading dimensions after [bh, bw] are several products at one core; those along the axis `over` are added up.
        The result is fresh core memory. With `total` it is added to that instead, and takes no memory: a core adds as
        it multiplies, number by number, whatever NumPy does. Returns the result or the total. LimitError. `cores`, bool
        of the block's shape, are those that multiply; the others have nothing to do, and zeros. A total of whole
        numbers, int32, takes products of whole numbers, exact while a tile's sums stay below 2^24.

        Timed as a core computes it (`Device.matmul_cycles`), `down` the columns of the result if so asked. UsageError
        where the tiles' sides do not go together.
        """
        if self.audit is not None:
            self.audit.multiplies(self.lead, {"a": a, "b": b} | ({} if total is None else {"total": total}))
            if over is not None and not 2 <= over < a.ndim - 2:
                raise UsageError(
                    f"`over` is {over}: products at a core that are added up lie along an axis behind [bh, bw] and"
                    f" before rows and columns, of tiles of shape {list(a.shape)}"
                )
            if total is not None:
                self.audit.adds_up(a, b, over, total)
        if a.shape[-1] != b.shape[-2]:
            raise UsageError(
                f"a product of tiles {[*a.shape[2:]]} and {[*b.shape[2:]]} at each core: the first has {a.shape[-1]}"
                f" columns, the second {b.shape[-2]} rows"
            )
        if total is None:
            shape = list(a.shape[2:-2])
            if a.shape[:-2] != b.shape[:-2]:
                shape = list(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])[2:])
            if over is not None:
                del shape[over - 2]
            self.memory.require("product", prod(shape) * a.shape[-2] * b.shape[-1] * 4)
        if not self.payload and self.timed:
            assert not isinstance(b, Made)  # made of numbers that there are
            a, b = np.zeros_like(a), np.zeros_like(b)  # buffers that no transfer has filled are not numbers
        itemsize = max(a.dtype.itemsize, b.dtype.itemsize)
        added = None if over is not None or cores is not None else total  # what the product is added to at once
        if added is not None and not (added.shape[:-2] == a.shape[:-2] == b.shape[:-2] and added.dtype == np.float32):
            added = None
        if self.timed:
            c = product(self.core, a, b, added)
        else:  # nobody looks at numbers
            leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            c = np.zeros((*leading, a.shape[-2], b.shape[-1]), np.float32) if added is None else added
        self.multiplied(c.shape, a.shape[-1], itemsize, cores, down)
        if cores is not None and self.payload:
            c[~cores] = 0
        if total is not None and total.dtype != c.dtype:
            if self.audit is not None and total.dtype.kind in "iu" and (c != np.rint(c)).any():
                raise UsageError(f"`total` of {total.dtype} for a product with fractions: give one of float32")
            c = c.astype(total.dtype)
        if over is not None:
            c = c.sum(axis=over) if c.shape[over] > 1 else c.squeeze(over)
        if total is None:
            return self.memory.keep("product", c)
        if added is None:
            total += c
        return total

    def multiplied(
        self, shape: tuple[int, ...], k: int, itemsize: int, cores: np.ndarray | None = None, down: bool = False
    ) -> None:
        """Count and time what every core, or those `cores`, does for a product [bh, bw, .., m, n] over k."""
        count, products, device = self._at_work(cores), prod(shape[2:-2]), self.device
        m, n = shape[-2:]
        kind = m, k, n, itemsize, down
        cost = self.clock.products.get(kind)
        if cost is None:
            cost = device.matmul_cycles(*kind), device.operand_bytes(m, k, n, itemsize)
            self.clock.products[kind] = cost
        macs, counters = products * m * n * k * count, self.ledger.counters
        counters.macs += macs
        if itemsize <= 2:
            counters.macs_16 += macs
        counters.operand_bytes += products * cost[1] * count
        if self.mapped:
            self.maps.add("macs", products * m * n * k, cores)
        self.clock.software(products * cost[0], cores)

    def work(self, macs: np.ndarray) -> None:
        """Every core does its own number of multiply-accumulates, int [bh, bw] (or what broadcasts to it).

        UsageError for a number below 0, and in one's own program for what is no whole number, or none for each core.
        """
        if self.audit is not None:
            self.audit.works(macs, self.shape)
            macs = np.asarray(macs).astype(np.int64)
        each = macs if getattr(macs, "shape", ()) == self.shape else np.broadcast_to(macs, self.shape)
        if each.min() < 0:
            raise UsageError(f"work of {int(each.min())} multiply-accumulates: what a core does is no less than 0")
        macs_done = int(each.sum())
        self.counters.macs += macs_done
        self.counters.operand_bytes += VECTOR_OPERANDS * 4 * macs_done
        if self.mapped:
            self.maps.add("macs", each)
        if self.device.macs_per_cycle is not None:
            chunk = 1.0 if self.device.chunk_cycles is None else self.device.chunk_cycles
            self.clock.spend(each * chunk / self.device.macs_per_cycle)
        self.clock.spend(self.device.call_cycles * (each > 0))  # a core without work is not called

    def elementwise(
        self, tiles: np.ndarray, calls: int = 1, cores: np.ndarray | None = None, operands: int = 2
    ) -> None:  # fmt: skip
        """Every core, or those `cores`, is busy for `calls` element-wise operations on tiles of this size, each of
        which reads so many operands that are vectors. UsageError in one's own program for tiles that are not those of
        all cores, for `cores` that are no bool for each of the block, and for numbers that are not whole."""
        if self.audit is not None:
            self.check_lead(tiles)
            self.audit.counts(calls=calls, operands=operands)
        if not calls:
            return
        operations, itemsize = calls * prod(tiles.shape[2:]), tiles.dtype.itemsize
        self._added(operations, itemsize, operands, cores)
        self.clock.compute(operations, calls, cores, itemsize, operands)

    def vectors(
        self, length: int, calls: int, itemsize: int, cores: np.ndarray | None = None, operands: int = 2
    ) -> None:  # fmt: skip
        """Every core, or those `cores`, issues so many vector instructions on `length` numbers of that size, each of
        which reads so many operands that are vectors. UsageError as `elementwise`."""
        if self.audit is not None:
            self.audit.counts(length=length, calls=calls, itemsize=itemsize, operands=operands)
        self._added(length * calls, itemsize, operands, cores)
        self.clock.vectors(length, calls, itemsize, cores, operands)

    def _added(self, operations: int, itemsize: int, operands: int, cores: np.ndarray | None) -> None:
        """Count element-wise operations, and what they read and write."""
        count, counters = operations * self._at_work(cores), self.ledger.counters
        counters.adds += count
        counters.operand_bytes += (operands + 1) * itemsize * count

    def _at_work(self, cores: np.ndarray | None) -> int:
        """How many of the block's cores these are. UsageError in one's own program for what is no bool for each."""
        if self.audit is not None:
            self.audit.marks(cores, self.shape)
        return self.hosted if cores is None else int(np.count_nonzero(cores))

    def scalar(
        self, *, divisions: int = 0, roots: int = 0, exponentials: int = 0, cores: np.ndarray | None = None
    ) -> None:
        """Every core, or those `cores`, does so many of these one after the other: no vector instruction has them.
        UsageError as `elementwise`."""
        if self.audit is not None:
            self.audit.marks(cores, self.shape)
            self.audit.counts(divisions=divisions, roots=roots, exponentials=exponentials)
        device = self.device
        cycles = divisions * device.division_cycles + roots * device.root_cycles
        self.clock.software(cycles + exponentials * device.exponential_cycles, cores)

    def step(self, times: int = 1) -> None:
        """Every core is busy with the software of so many steps of a loop, in which tiles are exchanged meanwhile."""
        self.clock.software(times * self.device.step_cycles)

    def rebuild(
        self, numbers: int, instructions: Iterable[tuple[int, int, int, int]], cores: np.ndarray | None = None
    ) -> None:
        """Every core, or those `cores`, makes so many numbers from codes. `instructions` are vector instructions of
        each kind: on how many numbers, how often, of how many bytes, and how many vectors each reads.
        """
        if self.audit is not None:
            self.audit.counts(numbers=numbers)
        self.counters.rebuilt += numbers * self._at_work(cores)
        if self.mapped:
            self.maps.add("rebuilt", numbers, cores)
        for length, calls, itemsize, operands in instructions:
            self.vectors(length, calls, itemsize, cores, operands)
