"""Where a token is, as config.json says it: rotary embeddings, and which layers see the last tokens only."""

from typing import Literal

from meshrt.models.keys import MAX_SIZE, Keys
from meshrt.models.kinds import ModelKind
from meshrt.records import dataclass

FACTORS = (1e-6, 1e6)  # of the rotary embedding: with these all angles are finite in float32
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding. `kind` says which of the last four fields act: none, `factor` for linear, all for llama3."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


def read_ropes(read: Keys, kind: ModelKind) -> tuple[Rope | None, Rope | None]:
    """The rotary embedding of a model, and that of its layers with a window where it is another. None where positions
    are learned. Raises ModelError with file and key."""
    if kind.position_offset is not None:
        return None, None
    if kind.local_theta is None:
        return _rope(read), None
    both = read.get("rope_parameters", dict, {})
    local_theta = read.between("rope_local_base_freq", 1, 1e18, kind.local_theta)
    if not both:
        rope = _rope(read)
        if rope.kind != "default" and read.data["rope_scaling"].get("rope_type") is None:
            raise read.bad(
                "rope_scaling", "has 'type', which not all versions of transformers read; name it 'rope_type'"
            )
        return rope, Rope(theta=local_theta)
    if read.has("rope_scaling"):
        raise read.bad("rope_scaling", "and 'rope_parameters' are both set; keep one of them")
    if not any(isinstance(value, dict) for value in both.values()):
        raise read.bad("rope_parameters", f"must have {FULL!r} and {SLIDING!r}: layers differ in this kind of model")
    theta = {FULL: read.between("rope_theta", 1, 1e18), SLIDING: local_theta}
    within = Keys(both, read.source, "rope_parameters.")
    parts = {name: Keys(within.get(name, dict, {}), read.source, f"rope_parameters.{name}.") for name in theta}
    _refuse_parts(read, *parts.values())
    full, local = (_rope_of(part, theta[name]) for name, part in parts.items())
    return full, local


def _rope(read: Keys) -> Rope:
    """transformers 4: `rope_theta` and `rope_scaling` (or null). transformers 5: all of it in `rope_parameters`."""
    both = [key for key in ("rope_scaling", "rope_parameters") if read.has(key)]
    if len(both) == 2 and read.data["rope_scaling"] != read.data["rope_parameters"]:
        raise read.bad("rope_scaling", "and 'rope_parameters' are both set and differ; keep one of them")
    rope = Keys(read.get(both[0], dict), read.source, both[0] + ".") if both else Keys({}, read.source)
    if any(isinstance(value, dict) for value in rope.data.values()):
        raise read.bad(both[0], "differs between kinds of layers; only one for all layers is supported")
    _refuse_parts(read, rope)
    length = "original_max_position_embeddings"  # versions of transformers differ on which of two counts
    if read.has(length) and rope.has(length) and read.data[length] != rope.data[length]:
        raise read.bad(length, f"and {rope.prefix + length!r} are both set and differ; keep one of them")
    return _rope_of(rope, read.between("rope_theta", 1, 1e18, 10000.0))


def _refuse_parts(*objects: Keys) -> None:
    """ModelError where only a part of a head is turned."""
    for keys in objects:
        if keys.number("partial_rotary_factor", 1.0) != 1.0:
            raise keys.bad("partial_rotary_factor", "is not 1; only whole heads are rotated")


def _rope_of(rope: Keys, theta: float) -> Rope:
    """What one object says, with this base where it says none."""
    theta = rope.between("rope_theta", 1, 1e18, theta)
    name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.get(name, str, "default")
    if kind == "default":
        return Rope(theta=theta)
    if kind not in ("linear", "llama3"):
        raise rope.bad(name, f"is {kind!r}; supported are default, linear, llama3")
    factor = rope.between("factor", *FACTORS)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=factor)
    low, high = (rope.between(key, *FACTORS) for key in ("low_freq_factor", "high_freq_factor"))
    if not low < high:
        raise rope.bad("low_freq_factor", f"is {low}; it must be below high_freq_factor, {high}")
    return Rope(
        theta=theta,
        kind="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=rope.size("original_max_position_embeddings"),
    )


def read_windows(read: Keys, kind: ModelKind, layers: int) -> tuple[int | None, ...]:
    """Of each layer how many tokens a token sees, itself included; nothing where all layers see all of them.

    As transformers has it: `layer_types` wins over what makes them where they are not there. ModelError.
    """
    types = read.get("layer_types", list, [])
    active = kind.windows in ("all", "pattern") or read.get("use_sliding_window", bool, False)
    if kind.windows == "never" and active:
        raise read.bad("use_sliding_window", "is true; of this kind of model only full attention is supported")
    if any(layer_type not in (FULL, SLIDING) for layer_type in types):
        raise read.bad("layer_types", f"has other layers than {FULL} and {SLIDING}")
    if types and len(types) != layers:
        raise read.bad("layer_types", f"has {len(types)} layers; num_hidden_layers is {layers}")
    if kind.windows == "all":
        return (read.size("sliding_window"),) * layers if read.has("sliding_window") else ()
    if not active:
        if SLIDING in types:
            raise read.bad("layer_types", f"has {SLIDING}, and 'use_sliding_window' is not set")
        return ()
    if kind.windows == "late":
        if "sliding_window" in read.data and not read.has("sliding_window") and SLIDING not in types:
            return ()  # null: there is none
        size = read.size("sliding_window", 4096)
        first = read.between("max_window_layers", 0, MAX_SIZE, 28)
        types = types or [SLIDING if number >= first else FULL for number in range(layers)]
    else:
        size = read.size("sliding_window")
        pattern = read.size("sliding_window_pattern", kind.pattern) if kind.pattern != 2 else 2
        types = types or [SLIDING if (number + 1) % pattern else FULL for number in range(layers)]
    windows = tuple(size if layer_type == SLIDING else None for layer_type in types)
    return windows if any(windows) else ()
