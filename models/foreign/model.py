"""A model that others quantized, as a folder of `meshrt quantize`: its codes as they are, nothing is rounded anew."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.checkpoint import expected_shapes
from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.folder import write_folder
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.folder import Parts, tensors
from meshrt.models.quantize.form import Activations, Group


@dataclass(frozen=True)
class Foreign:
    """A model by the names of Hugging Face: `config` is its config.json without a key of codes, `codes` are matrices of
    the layers [out, in], in groups of `group`; `others` are all other tensors. What goes along (tokenizer and such) is
    in the folder `base`, if there is one, and in `texts`, files by name.
    """

    source: Path
    method: str
    config: Mapping[str, Any]
    codes: Mapping[str, Codes]
    group: Group
    others: Mapping[str, NDArray[Any]]
    activations: Activations | None = None
    base: Path | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def write(out: str | Path, foreign: Foreign, activations: Activations | None) -> dict[str, Any]:
    """Writes the folder; what a report says of it. Raises ModelError."""
    data: dict[str, Any] = dict(foreign.config)
    if foreign.codes:
        data["quantized"] = _key(foreign, activations)
    elif activations:
        raise ModelError(f"{foreign.source}: its matrices are no codes; activations of 8 bits go with some that are")
    config = Config.from_dict(data, source=str(foreign.source))
    written = dict(foreign.others)
    for name, codes in foreign.codes.items():
        if name not in config.quantized:
            raise ModelError(f"{foreign.source}: has a matrix {name}, which is none of this model's layers")
        written |= tensors(name, Parts(codes, None))
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in written:
            raise ModelError(f"{foreign.source}: has no tensor for {name}")
        if written[name].shape != shape:
            raise ModelError(
                f"{foreign.source}: {name} has shape {list(written[name].shape)}; the model's sizes ask for"
                f" {list(shape)}"
            )
    more = sorted(written.keys() - expected.keys())
    if more:
        raise ModelError(f"{foreign.source}: has {more[0]}, which such a model does not have")
    write_folder(out, foreign.base, data, written, foreign.texts)
    nbytes = sum(one.nbytes for one in written.values())
    return {"quantized": data.get("quantized"), "matrices": len(foreign.codes), "bytes": nbytes}


def _key(foreign: Foreign, activations: Activations | None) -> dict[str, Any]:
    """config.json's `quantized`. ModelError where matrices differ in form: they have one in common."""
    forms = {(one.bits, one.zero is not None, one.offset is not None): name for name, one in foreign.codes.items()}
    if len(forms) > 1:
        first, second = [*forms.values()][:2]
        raise ModelError(f"{foreign.source}: {first} and {second} are kept in other ways; one for all can be read")
    ((bits, zeros, offsets),) = forms
    key: dict[str, Any] = {
        "method": foreign.method, "bits": bits, "group": foreign.group, "symmetric": not (zeros or offsets),
        "compensator_bits": 16, "ranks": {},
    }  # fmt: skip
    return key | ({"offset": True} if offsets else {}) | ({"activations": activations} if activations else {})


def halves(name: str, numbers: NDArray[Any], source: Path) -> NDArray[np.float16]:
    """Scales as float16. ModelError where that would change one by more than the rounding of a normal number."""
    wide = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        stored: NDArray[np.float16] = wide.astype(np.float16)
    if not np.isfinite(wide).all():
        raise ModelError(f"{source}: {name} has values that are NaN or infinite")
    bad = np.abs(stored.astype(np.float64) - wide) > np.abs(wide) * 2.0**-11
    if bad.any():
        raise ModelError(f"{source}: {name} has a scale of {wide[bad].flat[0]:g}, which float16 cannot keep")
    return stored
