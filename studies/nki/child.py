"""One kernel tried in a process of its own: python -m meshrt.studies.nki.child ROOT FILE NAME. Prints JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.errors import MeshrtError
from meshrt.studies.nki.case import find_case, worst
from meshrt.studies.nki.standins import install


def attempt(root: Path, path: str, name: str) -> dict[str, Any]:
    """parses, runs, right, reason; with the difference and the virtual time of what runs."""
    import meshrt.studies.nki.cases  # noqa: F401 - registers them

    case = find_case(path, name)
    install()
    try:
        module = load(root, path)
        if case is None:
            return {"parses": True, "runs": False, "right": False, "reason": "no inputs and reference here"}
        kernel = getattr(module, name)
        if hasattr(kernel, "how"):
            kernel.how = kernel.how.__class__(**{**vars(kernel.how), "show": False})
        pairs = case.run(kernel, module, np.random.default_rng(0))
    except (Exception, SystemExit) as error:
        return {"parses": True, "runs": False, "right": False, "reason": told(error)}
    gap = worst(pairs)
    report = getattr(kernel, "report", None) or {}
    time = report.get("critical_path", {}).get("seconds")
    right = gap <= case.tolerance
    reason = "" if right else f"differs from NumPy by {gap:.1e} of the largest number; {case.tolerance:g} is allowed"
    return {"parses": True, "runs": True, "right": right, "reason": reason, "difference": gap, "seconds": time,
            "api": report.get("api"), "notes": report.get("notes", [])}  # fmt: skip


def load(root: Path, path: str) -> Any:
    """The module of a file, as its package where it imports its neighbours by dots."""
    file = root / path
    sys.path[:0] = [str(file.parent), str(root / "src")]
    parts = Path(path).with_suffix("").parts
    dotted = ".".join(parts[1:]) if parts[0] == "src" else ""
    if dotted and "from ." in file.read_text():
        return importlib.import_module(dotted)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def told(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return text if isinstance(error, MeshrtError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    folder, file_path, kernel_name = sys.argv[1:]
    print(json.dumps(attempt(Path(folder), file_path, kernel_name)))
