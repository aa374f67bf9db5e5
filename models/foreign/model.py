"""A model that others quantized, as a folder of `meshrt quantize`: its codes as they are, nothing is rounded anew."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import expected_shapes
from meshrt.models.folders.writing import write_folder
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.folder import MatrixParts, tensors
from meshrt.models.quantize.form import Activations, GroupSize
from meshrt.records import dataclass


@dataclass(frozen=True)
class Foreign:
    """A model by the names of Hugging Face: `config` is its config.json without a key of codes, `tensors` are what a
    folder has (models/quantize/form.py), and `forms` say of the matrices in codes, in groups of `group`, how many bits
    they have and whether there are zeros, and offsets. What goes along (tokenizer and such) is in the folder `base`, if
    there is one, and in `texts`, files by name.
    """

    source: Path
    method: str
    config: Mapping[str, Any]
    group: GroupSize
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    forms: dict[str, tuple[int, bool, bool]] = field(default_factory=dict)
    activations: Activations | None = None
    base: Path | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def add(foreign: Foreign, name: str, codes: Codes) -> None:
    """The matrix of that name, packed at once: unpacked, codes take twice their bytes and more."""
    foreign.tensors.update(tensors(name, MatrixParts(codes, None)))
    foreign.forms[name] = codes.bits, codes.zero is not None, codes.offset is not None


def check_all_or_none(foreign: Foreign) -> None:
    """ModelError where some matrices are codes and others are not."""
    dense = next((name for name in foreign.tensors if name.endswith("_proj.weight")), None)
    if dense and foreign.forms:
        raise ModelError(f"{foreign.source}: {dense} is no codes, and other matrices are: all or none can be read")


def write(out: str | Path, foreign: Foreign, activations: Activations | None) -> dict[str, Any]:
    """Writes the folder; what a report says of it. Raises ModelError."""
    data: dict[str, Any] = dict(foreign.config)
    if foreign.forms:
        data["quantized"] = _key(foreign, activations)
    elif activations:
        raise ModelError(f"{foreign.source}: its matrices are no codes; activations of 8 bits go with some that are")
    config = Config.from_dict(data, source=str(foreign.source))
    written = foreign.tensors
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
    nbytes = sum(tensor.nbytes for tensor in written.values())
    return {"quantized": data.get("quantized"), "matrices": len(foreign.forms), "bytes": nbytes}


def _key(foreign: Foreign, activations: Activations | None) -> dict[str, Any]:
    """config.json's `quantized`. ModelError where matrices differ in form: they have one in common."""
    forms = {form: name for name, form in foreign.forms.items()}
    if len(forms) > 1:
        first, second = [*forms.values()][:2]
        raise ModelError(f"{foreign.source}: {first} and {second} are kept in other ways; one for all can be read")
    ((bits, zeros, offsets),) = forms
    key: dict[str, Any] = {
        "method": foreign.method, "bits": bits, "group": foreign.group, "symmetric": not (zeros or offsets),
        "compensator_bits": 16, "ranks": {},
    }  # fmt: skip
    return key | ({"offset": True} if offsets else {}) | ({"activations": activations} if activations else {})
