"""Writing a model folder: all of it or nothing."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import INDEX, SINGLE
from meshrt.models.folders.files import find_file

# What stays the same when the weights change: tokenizer, generation settings, the licence.
KEPT = ("*.json", "*.model", "*.txt", "LICENSE*", "NOTICE*")


def check_new_folder(out: str | Path) -> None:
    """ModelError where a folder of that name cannot be made, as far as that shows beforehand."""
    out = Path(out).absolute()
    if os.path.lexists(out):
        raise ModelError(f"{out}: is there already; name a folder that is not, nothing is overwritten")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ModelError(f"{out}: there is no folder {out.parent} that can be written")


def write_folder(
    out: str | Path, base: Path | None, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]],
    texts: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Writes config.json and model.safetensors, with the tokenizer and such of `base`, and renames when all is there.

    `texts` are other files, by name.

    Raises ModelError if the folder is there already or the disk does not take it; then nothing is left behind.
    """
    from safetensors.numpy import save_file

    out = Path(out).absolute()
    check_new_folder(out)
    beside = None
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        names = {path.name for pattern in KEPT for path in base.glob(pattern)} if base else set()
        for name in names - {"config.json", INDEX}:
            if base and (path := find_file(base, name)):
                shutil.copyfile(path, beside / name)
        for name, text in (texts or {}).items():
            (beside / name).write_text(text, encoding="utf-8")
        (beside / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(dict(tensors), beside / SINGLE, metadata={"format": "pt"})
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o777 & ~mask)  # both were made for their owner alone
        (beside / SINGLE).chmod(0o666 & ~mask)
        beside.rename(out)
    except OSError as error:
        raise ModelError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        if beside is not None and beside.exists():
            shutil.rmtree(beside, ignore_errors=True)
