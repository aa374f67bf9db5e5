"""What is installed is what there is, and each layer imports only what lies below it."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import meshrt.machine
from meshrt.machine import find_machine, machines
from meshrt.reports import kinds

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
LAYERS = ("meshrt", "programs", "launch", "models", "studies")
TEXTS = ("docs", "examples")  # are in a wheel, too: what messages point at, and what to begin from
STATEMENTS = runpy.run_path(str(ROOT / "ci" / "imports"))["statements"]
COMMANDS = ROOT / "meshrt" / "commands"  # with what a command needs, whatever the layer


@cache
def _files(layer: str) -> list[Path]:
    return sorted(
        path for path in (ROOT / layer).rglob("*.py") if not path.is_relative_to(ROOT / layer / "__pycache__")
    )


@cache
def _texts() -> list[Path]:
    """All files of the project that are text, but for what Python and compilers made."""
    folders = (*LAYERS, *TEXTS, "tests", "ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    files = [path for path in paths if path.is_file() and path.suffix not in (".pyc", ".so")]
    return [path for path in files if b"\0" not in path.read_bytes()]


@cache
def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


@cache
def _imports(path: Path, for_types: bool = True) -> list[str]:
    """Full names of all modules that a file imports, anywhere in it; `from a import b` counts as a.b too.

    Those under `if TYPE_CHECKING:`, which are never loaded, are left out on request.
    """
    names: list[str] = []
    for part in _body(path):
        if not for_types and isinstance(part, ast.If) and "TYPE_CHECKING" in ast.unparse(part.test):
            continue
        for node in STATEMENTS([part]):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def _layer(module: str) -> str | None:
    """The layer that a module of meshrt belongs to; None for others."""
    parts = module.split(".")
    if parts[0] != "meshrt" or parts[:2] == ["meshrt", "records"]:  # which is below all layers
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS[1:] else "meshrt"


def _of_meshrt(path: Path) -> set[str]:
    """Layers that a file imports from."""
    # `from meshrt import launch` names the bare package as well, which says nothing.
    return {layer for module in _imports(path) if module != "meshrt" and (layer := _layer(module))}


def test_every_package_is_listed_and_mapped() -> None:
    folders = {path.parent.relative_to(ROOT).parts for layer in LAYERS for path in (ROOT / layer).rglob("__init__.py")}
    packages = {".".join(parts if parts[0] == "meshrt" else ("meshrt", *parts)) for parts in folders}
    assert set(SETUPTOOLS["packages"]) == packages | {f"meshrt.{folder}" for folder in TEXTS}
    assert SETUPTOOLS["package-dir"] == {f"meshrt.{layer}": layer for layer in (*LAYERS[1:], *TEXTS)}
    for layer in LAYERS[1:]:
        assert (ROOT / "meshrt" / layer).resolve() == ROOT / layer


def test_model_data_is_packaged() -> None:
    patterns = SETUPTOOLS["package-data"]["meshrt.models"]
    data = [
        path
        for path in (ROOT / "models").rglob("*")
        if path.suffix in (".json", ".safetensors", ".npz", ".txt", ".model")
    ]
    assert data
    for path in data:
        name = path.relative_to(ROOT / "models").as_posix()
        assert any(fnmatch(f"/{name}", f"*/{pattern.removeprefix('**/')}") for pattern in patterns), name


def test_measurements_are_packaged_with_their_sources() -> None:
    patterns = SETUPTOOLS["package-data"]["meshrt.studies.validate"]
    data = list((ROOT / "studies" / "validate" / "data").iterdir())
    assert "README.md" in {path.name for path in data} and any(path.suffix == ".csv" for path in data)
    for path in data:
        assert any(fnmatch(f"data/{path.name}", pattern) for pattern in patterns), path


def test_the_schema_of_reports_is_packaged() -> None:
    patterns = SETUPTOOLS["package-data"]["meshrt"]
    for path in (ROOT / "meshrt" / "schema").iterdir():
        name = path.relative_to(ROOT / "meshrt").as_posix()
        assert any(fnmatch(name, pattern) for pattern in patterns), name


@pytest.mark.parametrize("layer", LAYERS)
def test_no_bare_names(layer: str) -> None:
    for path in _files(layer):
        assert not {module.split(".")[0] for module in _imports(path)} & set(LAYERS[1:]), path


def test_the_runtime_imports_no_other_layer() -> None:
    for path in _files("meshrt"):
        # Program files are found and loaded by name, so only the commands say the other layers' names.
        if not path.is_relative_to(COMMANDS):
            assert _of_meshrt(path) <= {"meshrt"}, path


def test_models_import_neither_runtime_nor_programs_nor_mpi() -> None:
    for path in _files("models"):
        assert _of_meshrt(path) <= {"models"}, path
        assert "mpi4py" not in {module.split(".")[0] for module in _imports(path)}, path


def test_what_all_layers_may_import_imports_none() -> None:
    assert {module.split(".")[0] for module in _imports(ROOT / "meshrt" / "records.py")} <= sys.stdlib_module_names


def test_programs_import_runtime_models_and_numpy() -> None:
    allowed = {"meshrt", "numpy", "ml_dtypes", *sys.stdlib_module_names}  # ml_dtypes: more dtypes of NumPy
    for path in _files("programs"):
        assert {module.split(".")[0] for module in _imports(path, for_types=False)} <= allowed, path
        assert "launch" not in _of_meshrt(path), path


def test_launch_knows_nothing_of_meshes() -> None:
    allowed = {"meshrt.ranks.host", "meshrt.ranks.launcher", "meshrt.errors", "meshrt.launch"}
    for path in _files("launch"):
        for module in _imports(path):
            if _layer(module) and module not in ("meshrt", "meshrt.ranks"):
                assert module.startswith(tuple(allowed)), f"{path}: {module}"


def test_nothing_lies_at_the_top_by_mistake() -> None:
    """Files at the top are those that readers, packagers and tools look for there: a log had come in, twice."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        # In an archive of the sources, what a user has put there cannot be told from what came with it.
        pytest.skip("only git knows what belongs to the tree")
    argv = ["git", "-c", "safe.directory=*", "ls-files", "-z"]  # whoever owns the checkout
    tracked = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name for name in tracked.split("\0") if name and "/" not in name} == {
        *(".gitignore", ".pre-commit-config.yaml", "MANIFEST.in", "mkdocs.yml", "pyproject.toml"),
        *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"),
    }


def test_heavy_libraries_are_imported_late() -> None:
    """--help and 64 ranks' start-up pay for every import at the top of a file.

    What trains needs torch, and nothing else imports it. What reads ONNX files needs its libraries: nothing else
    imports it but the command, and the fuzzer, both where they need it.
    """
    training = {"train", "lora", "torchmodel"}
    reading = {ROOT / "models" / "onnx", ROOT / "studies" / "fuzz" / "graphs.py"}
    onnx = {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "google"}
    heavy = {"mpi4py", "torch", "transformers", "matplotlib", "tokenizers", "rich"}
    for layer in LAYERS:
        for path in _files(layer):
            if layer == "models" and path.stem in training:
                continue
            assert not set(_imports(path)) & {f"meshrt.models.{name}" for name in training}, path
            if not reading & {path, path.parent}:
                libraries = {name for name in _imports(path) if name.split(".")[0] in onnx}
                assert not libraries, f"{path}: {libraries}"
                late = path in (COMMANDS / "import_.py", ROOT / "studies" / "fuzz" / "worker.py")
                theirs = {name for name in _imports(path) if name.startswith("meshrt.models.onnx")}
                assert late or not theirs, f"{path}: {theirs}"
            for node in _body(path):
                names = {alias.name.split(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
                names |= {str(node.module).split(".")[0]} if isinstance(node, ast.ImportFrom) else set()
                module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
                assert reading & {path, path.parent} or not module.startswith("meshrt.models.onnx"), path
                assert not names & heavy, f"{path}: {names & heavy} at the top"


# Room -> rooms above it or beside it, of which it knows nothing. A module is in all rooms that its name begins with.
STRANGERS: dict[str, tuple[str, ...]] = {
    "ranks": ("groups", *machines(), "machine", "reports", "emulate", "commands", "cli"),
    "groups": (*machines(), "machine", "reports", "emulate", "commands", "cli"),
    **{name: (*{*machines()} - {name}, "reports.report", "emulate", "commands", "cli") for name in machines()},
    "mesh.wires": ("mesh.block", "mesh.tiles", "mesh.repeat", "mesh.state", "mesh.collectives", "mesh.exchange"),
    "mesh.cores": ("mesh.block", "mesh.wires.fabric", "mesh.collectives", "mesh.exchange"),
    "mesh.block": ("mesh.collectives", "mesh.exchange", "mesh.state", "mesh.repeat", "mesh.tiles"),
    "mesh.collectives": ("mesh.exchange", "mesh.state", "mesh.repeat"),
    "mesh.exchange": ("mesh.collectives", "mesh.state", "mesh.repeat"),
    "reports": (*machines(), "fitting", "emulate", "scoring", "commands", "cli"),
    "fitting": ("emulate", "scoring", "commands", "cli"),
}


@cache
def _arrows() -> dict[str, set[str]]:
    """Which modules each one imports, those inside functions and for types too. A package is its __init__."""
    modules: dict[str, Path] = {}
    for layer in LAYERS:
        for path in _files(layer):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if layer == "meshrt" else ("meshrt", *parts)
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    arrows = {}
    for name, path in modules.items():
        imported = set()
        for node in STATEMENTS(_body(path)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                each = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {full_name if full_name in modules else str(node.module) for full_name in each}
        arrows[name] = imported & modules.keys() - {name}
    return arrows


def _in_circles(arrows: dict[str, set[str]]) -> set[str]:
    """What is left when what imports, or is imported by, nothing that is left is taken out, again and again."""
    left = set(arrows)
    while True:
        kept = {name for name in left if arrows[name] & left and any(name in arrows[other] for other in left)}
        if kept == left:
            return left
        left = kept


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert _in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}
    arrows = _arrows()
    assert sum(map(len, arrows.values())) > 4 * len(arrows) > 800
    assert _in_circles(arrows) == set()


def test_no_arrow_goes_up_or_across() -> None:
    arrows = _arrows()
    for room, strangers in STRANGERS.items():
        inside = [name for name in arrows if f"{name}.".startswith(f"meshrt.{room}.")]
        above = tuple(f"meshrt.{stranger}." for stranger in strangers)
        assert inside and all(any(f"{name}.".startswith(prefix) for name in arrows) for prefix in above), room
        for name in inside:
            assert not [imported for imported in arrows[name] if f"{imported}.".startswith(above)], name


def test_only_the_commands_know_the_studies() -> None:
    for layer in LAYERS:
        for path in _files(layer):
            if layer != "studies" and not path.is_relative_to(COMMANDS):
                assert "studies" not in _of_meshrt(path), path


def test_the_package_is_not_named_as_another_projects() -> None:
    """`meshrt` on the package index is not this, and this is on none (docs/decisions/014).

    Nothing may tell users to install it by name, or ask for the other's metadata.
    """
    assert PYPROJECT["project"]["name"] == "meshrt-emulator"
    wrong = re.compile(
        r"pip3? +install[^\n]*[\s'\"](?:meshrt(?![\w/.-])|meshrt-emulator\b)|metadata\.\w+\(['\"]meshrt['\"]\)"
        r"|['\"]meshrt\\*\[|meshrt-emulator\\*\["
    )
    for text in ("pip install 'meshrt[mpich]'", "pip install -U meshrt", "pip install meshrt-emulator mpich"):
        assert wrong.search(text)
    assert not wrong.search("pip install ./meshrt_emulator-*.whl mpich") and wrong.search("needs meshrt-emulator[onnx]")
    for path in _texts():
        if path.suffix in ("", ".py", ".md", ".yml") and path != Path(__file__).resolve():
            assert not wrong.search(path.read_text()), path


def test_papers_are_named_by_title_and_link() -> None:
    """Not by persons: the project names none."""
    persons = re.compile(rb"\bet al\b", re.IGNORECASE)
    assert persons.search(b"somebody et al. 2024") and not persons.search(b"--set algorithm=cannon")
    assert len(_texts()) > 1000
    wrong = [path for path in _texts() if path != Path(__file__).resolve() and persons.search(path.read_bytes())]
    assert not wrong, wrong


def test_the_packages_licence_is_the_one_beside_it() -> None:
    project = PYPROJECT["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    assert project["authors"] == [{"name": "the meshrt developers"}]


@pytest.mark.parametrize("name", machines())
def test_a_machine_has_what_is_asked_of_it(name: str) -> None:
    kind, of_devices = find_machine(name), {"ONE_MEMORY", "QUICK", "fullest", "with_memory"}
    every_machines = {"PRESETS", "SHARED", "SUMMARY", "TIMELINE", "asked", "ceilings", "gather", "open_machine", "rows"}
    every_machines |= {"title"}
    assert {*kind.__all__} == every_machines | (of_devices if name != "mesh" else set())
    assert all(re.search(rf"\b{word}\b", str(meshrt.machine.__doc__)) for word in kind.__all__)
    assert all(kinds.find(name, path) for path in kind.SUMMARY)


def test_the_oldest_packages_are_those_of_the_bounds() -> None:
    """`ci/oldest` tests with them: each requirement of a run and of the tests says from which version on."""
    oldest = runpy.run_path(str(ROOT / "ci" / "oldest"))["oldest"]()
    extras = PYPROJECT["project"]["optional-dependencies"]
    bounds = [*PYPROJECT["project"]["dependencies"], *extras["mpich"], *extras["test"]]
    assert oldest == [bound.replace(">=", "==") for bound in bounds]
