"""Weights of 2, 3, 5, 6 or 7 bits: planes of 4, 2 and 1 of their bits, each of which shifts and masks unpack.

Of 64 codes, which are four registers of 16, the plane of four bits is two registers (a register's codes are the upper
halves of their bytes, the next one's the lower), that of two bits one, with the codes of register j in bits 2 j and
2 j + 1, and that of one bit 8 bytes: of byte i bit j is of code i of register j, and bit 4 + j of code 8 + i. So no bit
of memory is wasted. What is unpacked is shifted to its place in the code, masked, and put together by `orr`.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from meshrt.arm.isa import Instruction, ld1, ld1r, of
from meshrt.programs.arm.layout import STEP
from meshrt.records import dataclass

Array = np.ndarray
BLOCK = 4  # registers of codes whose planes lie together
SHIFTS = np.array([0] * 8 + [256 - 4] * 8, np.uint8)  # the upper half of a register of one bit each: four to the right


def planes_of(bits: int) -> list[tuple[int, int]]:
    """Bits of each plane, and the lowest of them in a code: 7 -> (4, 0), (2, 4), (1, 6)."""
    planes, at = [], 0
    for width in (4, 2, 1):
        if bits & width:
            planes.append((width, at))
            at += width
    return planes


def temporaries(bits: int, columns: int) -> int:
    """Registers that unpacking takes on tiles of so many columns: codes of a step, masks, what is put together, shifts.

    Four bits alone are packed in pairs, and need none to put together.
    """
    planes, blocks = planes_of(bits), columns * STEP // (16 * BLOCK)
    packed = sum(blocks * (2 if width == 4 else 1) for width, _ in planes)
    return packed + len(planes) + (len(planes) > 1) + bits % 2


def pack(codes: Array, bits: int) -> Array:
    """uint8 [.., a multiple of 64] -> [.., bytes]: the planes one after the other, that of one bit last."""
    blocks = codes.reshape(*codes.shape[:-1], -1, BLOCK, 16)
    planes = []
    for width, at in planes_of(bits):
        part = blocks >> at & (1 << width) - 1
        if width == 4:
            plane = part[..., 0::2, :] << 4 | part[..., 1::2, :]
        elif width == 2:
            plane = np.bitwise_or.reduce([part[..., j, :] << 2 * j for j in range(BLOCK)])
        else:
            plane = np.bitwise_or.reduce([part[..., j, :8] << j | part[..., j, 8:] << 4 + j for j in range(BLOCK)])
        planes.append(plane.reshape(*codes.shape[:-1], -1))
    return np.concatenate(planes, axis=-1)


@dataclass(frozen=True)
class Unpacking:
    """The registers that unpacking takes in a kernel, by the bits of a plane, and its instructions."""

    planes: Sequence[tuple[int, int]]
    packed: Mapping[int, Sequence[str]]
    masks: Mapping[int, str]
    spare: str
    shifts: str

    def before(self) -> list[Instruction]:
        lines = [of("movi", self.masks[width], at=(1 << width) - 1 << at) for width, at in self.planes]
        return [*lines, ld1((self.shifts,), "shifts")] if self.shifts else lines

    def load(self) -> list[Instruction]:
        wide = tuple(name for width in (4, 2) for name in self.packed.get(width, ()))
        lines = [ld1(wide, "w")]
        for name in self.packed.get(1, ()):
            lines += [ld1r(name, "bits"), of("ushl", name, name, self.shifts)]
        return lines

    def unpack(self, chunk: int, to: str) -> list[Instruction]:
        """A register of codes."""
        block, j = divmod(chunk, BLOCK)
        lines: list[Instruction] = []
        for number, (width, at) in enumerate(self.planes):
            register = self.spare if number else to
            if width == 4:
                source, right, top = self.packed[4][2 * block + j // 2], 4 * (1 - j % 2), j % 2 == 0
            else:
                source, right, top = self.packed[width][block], width * j - at, width == 2 and j == 3 and at == 0
            if right:
                lines.append(of("ushr" if right > 0 else "shl", register, source, at=abs(right)))
            if not top:
                lines.append(of("and", register, register if right else source, self.masks[width]))
            if number:
                lines.append(of("orr", to, to, register))
        return lines

    @property
    def free(self) -> list[str]:
        """Registers that the loop does not carry."""
        return [name for names in self.packed.values() for name in names] + ([self.spare] if self.spare else [])


def unpacking(bits: int, chunks: int, names: Iterator[str]) -> Unpacking:
    """For so many registers of codes in a step."""
    planes, blocks = planes_of(bits), chunks // BLOCK
    packed = {width: [next(names) for _ in range(blocks * (2 if width == 4 else 1))] for width, _ in planes}
    masks = {width: next(names) for width, _ in planes}
    return Unpacking(planes, packed, masks, next(names) if len(planes) > 1 else "", next(names) if bits % 2 else "")
