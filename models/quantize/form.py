"""The form of a quantized matrix, and what config.json says of it.

In place of `..mlp.gate_proj.weight` [out, in] a folder has, with B = group * bits / 8 bytes a group,

    ..mlp.gate_proj.codes    U8   [out, groups * B]  codes of `bits` bits, row by row (models/quantize/packing.py)
    ..mlp.gate_proj.scale    F16  [out, groups]
    ..mlp.gate_proj.zero     F16  [out, groups]      not where symmetric: there it is 2^(bits - 1)

and stands for (code - zero) * scale, plus U V where it has a rank r; or, with `.offset` F16 [out, groups] in place of
`.zero`, for code * scale + offset. A group is `group` neighbours along the inputs; the last one of a row may stand for
fewer, its other codes mean nothing. Where `group` is "row", a row is one group, its inputs filled up to 32.
U [out, r] and V [r, in] are `.u` and `.v` in F16 where compensator_bits is 16, else `.u_codes` U8 [groups, B],
`.u_scale` F16 [groups] and the same for v: symmetric codes of compensator_bits in groups of the row-major array, the
last one filled up. A bias keeps its name. config.json has one key more:

    "quantized": {"method": "milo", "bits": 3, "group": 64, "symmetric": false, "compensator_bits": 3,
                  "ranks": {"model.layers.0.mlp.gate_proj": 8, ...}}

All matrices of the layers are quantized; those without a rank have no compensator. `method` is for people. Some keys
more may be there:

    "offset": true                 offsets in place of zeros
    "activations": "row", "block"  products are meant to be of whole numbers (models/integer.py): inputs are put into 8
                                   bits, with a scale for each row of them or for each group in it. Who multiplies
                                   numbers that are rebuilt from codes has no use for it
    "head": 8                      a head `lm_head` in 8 bits, and else in the same form
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from meshrt.records import dataclass

BITS = range(2, 9)
COMPENSATOR_BITS = (3, 8, 16)
GROUP_UNIT, MAX_GROUP = 32, 1 << 16  # 32 codes are whole bytes, whatever the bits, and three words of 3 bits
KEYS = ("method", "bits", "group", "symmetric", "compensator_bits", "ranks", "offset", "activations", "head")
HEAD_BITS = 8

Activations = Literal["row", "block"]
GroupSize = int | Literal["row"]

Spec = tuple[str, tuple[int, ...]]  # a tensor's dtype, as safetensors has it, and shape


@dataclass(frozen=True)
class Quantized:
    """How one matrix is kept. `rank` is that of its compensator, 0: it has none."""

    bits: int
    group: int
    symmetric: bool = False
    rank: int = 0
    compensator_bits: int = 16
    offset: bool = False
    activations: Activations | None = None

    @property
    def shift(self) -> str | None:
        """The tensor that says where a group lies, by the end of its name."""
        return None if self.symmetric else "offset" if self.offset else "zero"

    def codes(self, rows: int, columns: int) -> dict[str, Spec]:
        """Tensors of the matrix itself [rows, columns], by the ends of their names."""
        groups = -(-columns // self.group)
        specs: dict[str, Spec] = {
            "codes": ("U8", (rows, groups * self.group * self.bits // 8)), "scale": ("F16", (rows, groups)),
        }  # fmt: skip
        return specs if self.shift is None else specs | {self.shift: ("F16", (rows, groups))}

    def compensator(self, rows: int, columns: int) -> dict[str, Spec]:
        """Tensors of U [rows, rank] and V [rank, columns], by the ends of their names."""
        specs: dict[str, Spec] = {}
        for name, shape in (("u", (rows, self.rank)), ("v", (self.rank, columns))) if self.rank else ():
            if self.compensator_bits == 16:
                specs[name] = ("F16", shape)
                continue
            groups = -(-shape[0] * shape[1] // self.group)
            specs[name + "_codes"] = ("U8", (groups, self.group * self.compensator_bits // 8))
            specs[name + "_scale"] = ("F16", (groups,))
        return specs

    def tensors(self, name: str, rows: int, columns: int) -> dict[str, Spec]:
        """All tensors of the matrix of that name."""
        specs = self.codes(rows, columns) | self.compensator(rows, columns)
        return {f"{name}.{end}": spec for end, spec in specs.items()}


def read_quantized(key: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]) -> dict[str, Quantized]:
    """The forms that config.json's `quantized` gives all matrices of a model, which have these shapes [out, in].

    Raises ValueError saying what is wrong with the key.
    """
    for name in key:
        if name not in KEYS:
            raise ValueError(f"has {name!r}, which is not known here and may change the numbers")
    bits, group, symmetric = key.get("bits"), key.get("group"), key.get("symmetric")
    if type(bits) is not int or bits not in BITS:
        raise ValueError(f"has 'bits' {bits!r}; it must be {BITS[0]} to {BITS[-1]}")
    if type(group) is not int and group != "row":
        raise ValueError(f"has 'group' {group!r}; it must be a whole number, or 'row'")
    groups = {name: row_group(shapes[name][1]) if group == "row" else group for name in shapes}
    for size in groups.values():
        check_group(size)
    if not isinstance(symmetric, bool):
        raise ValueError(f"has 'symmetric' {symmetric!r}; it must be true or false")
    offset, activations = key.get("offset", False), key.get("activations")
    if not isinstance(offset, bool) or (offset and symmetric):
        raise ValueError(f"has 'offset' {offset!r}; it must be true or false, and false where 'symmetric' is true")
    if activations is not None and activations not in get_args(Activations):
        raise ValueError(f"has 'activations' {activations!r}; it must be one of {', '.join(get_args(Activations))}")
    compensator_bits, ranks = key.get("compensator_bits"), key.get("ranks")
    if type(compensator_bits) is not int or compensator_bits not in COMPENSATOR_BITS:
        choices = ", ".join(map(str, COMPENSATOR_BITS))
        raise ValueError(f"has 'compensator_bits' {compensator_bits!r}; it must be one of {choices}")
    if not isinstance(ranks, dict):
        raise ValueError("has no 'ranks', an object of the compensators' ranks by matrix; it may be empty")
    for name, rank in ranks.items():
        if name not in shapes:
            raise ValueError(f"has a rank for {name!r}, which is no matrix of this model's layers")
        if type(rank) is not int or not 1 <= rank <= min(shapes[name]):
            raise ValueError(f"has rank {rank!r} for {name}; it must be 1..{min(shapes[name])}, the matrix's own limit")
    if activations is not None and ranks:
        raise ValueError("has 'activations' and 'ranks': products of whole numbers have no compensators")
    return {
        name: Quantized(bits, groups[name], symmetric, ranks.get(name, 0), compensator_bits, offset, activations)
        for name in shapes
    }


def read_head(key: Mapping[str, Any], form: Quantized, columns: int) -> Quantized | None:
    """The form of the head with so many inputs beside matrices of this one. ValueError."""
    head = key.get("head")
    if head is None:
        return None
    if type(head) is not int or head != HEAD_BITS:
        raise ValueError(f"has 'head' {head!r}; it must be {HEAD_BITS}, or not be there")
    group = row_group(columns) if key.get("group") == "row" else form.group
    return replace(form, bits=HEAD_BITS, group=group, rank=0)


def common_group(forms: Iterable[Quantized]) -> GroupSize:
    """That of all of them; "row" where they have several, as whole rows do."""
    groups = {form.group for form in forms}
    return groups.pop() if len(groups) == 1 else "row"


def row_group(columns: int) -> int:
    """The group of a whole row of so many inputs: these, filled up."""
    return -(-columns // GROUP_UNIT) * GROUP_UNIT


def check_group(group: int) -> None:
    """ValueError for what cannot be a group's size."""
    if not GROUP_UNIT <= group <= MAX_GROUP or group % GROUP_UNIT:
        raise ValueError(f"has 'group' {group!r}; it must be a multiple of {GROUP_UNIT}, {MAX_GROUP} at most")
