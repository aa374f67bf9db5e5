"""What README, docs and examples show is what comes out, word for word."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from make_files import FOLDERS, first_words
from mpi_jobs import Finished

ROOT = Path(__file__).parents[2]
README, START, PROGRAMS = ((ROOT / name).read_text() for name in ("README.md", "docs/start.md", "docs/programs.md"))
ROWSUM, TILED = (text.split("```python\n")[1].split("```")[0] for text in (README, PROGRAMS))


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_example_runs_and_prints_what_is_shown(ranks: int, tmp_path: Path, run_meshrt: Callable[..., Finished]):
    (tmp_path / "rowsum.py").write_text(ROWSUM)
    code, out, err, _ = run_meshrt("run", str(tmp_path / "rowsum.py"), "--size", "100", ranks=ranks)
    shown = README.split("meshrt run rowsum.py --size 100\n")[1].split("\n\n")[0].strip()
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == shown == "sum: 15"


def test_the_programs_that_are_shown_are_those_in_the_examples():
    assert (ROOT / "examples" / "rowsum.py").read_text() == ROWSUM
    assert (ROOT / "examples" / "tiled.py").read_text() == TILED


def test_the_table_of_a_run_is_what_it_prints_and_the_same_in_both_places(run_meshrt: Callable[..., Finished]):
    tables = []
    for text in (README, START):
        (line,) = (line for line in text.splitlines() if line.startswith("    meshrt run llama-tiny --prompt-ids"))
        tables.append([row[4:] for row in text.split(line)[1].split("\n\n")[1].splitlines()])
    assert tables[0] == tables[1]
    code, out, err, _ = run_meshrt(*line.split()[1:])
    assert (code, err) == (0, "")
    printed = [row.rstrip() for row in out.splitlines()]
    begin = printed.index(tables[0][0])
    assert [row for row in printed[begin:] if not row.startswith("wall time")] == tables[0]


def test_the_example_keeps_to_what_the_docs_expect_of_a_program(tmp_path: Path, run_meshrt: Callable[..., Finished]):
    """The compliance check's own example line, on the example program: it runs by shape as well."""
    (tmp_path / "my_program.py").write_text(ROWSUM)
    (line,) = (line for line in START.splitlines() if "meshrt plmr my_program.py" in line)
    argv = shlex.split(line)[1:]
    argv[1] = str(tmp_path / "my_program.py")
    code, _, err, _ = run_meshrt(*argv, "--sizes", "4,6,8")
    assert code == 3 and err.splitlines()[0] == "meshrt: error: a stated bound does not hold"
    assert all(": hops at N = " in line for line in err.splitlines()[1:]), "a K-tree's longest packet is more than 2"
    code, _, err, _ = run_meshrt(*argv[:-1], "entries=12,stages~N^0.5", "--sizes", "4,6,8")
    assert (code, err) == (0, "")


def test_the_example_of_other_cores_for_decode_runs_and_no_number_of_it_is_cut_off(run_meshrt: Callable[..., Finished]):
    (line,) = (line for line in START.splitlines() if "--decode-mesh" in line)
    code, out, err, _ = run_meshrt(*line.split()[1:])
    assert (code, err) == (0, "")
    assert "change of cores" in out and "\N{HORIZONTAL ELLIPSIS}" not in out


def test_the_kernel_runs_and_prints_what_is_shown(tmp_path: Path, run_meshrt: Callable[..., Finished]):
    """x crosses once for each of ceil(600 / 512) = 2 blocks of columns, y once for each of ceil(600 / 128) = 5."""
    (tmp_path / "tiled.py").write_text(TILED)
    code, out, err, _ = run_meshrt("run", str(tmp_path / "tiled.py"), "--size", "600")
    assert (code, err) == (0, "")
    shown = PROGRAMS.split("meshrt run tiled.py --size 600\n")[1].split("\n\n")[0].splitlines()
    lines = [line.strip() for line in shown if line.strip() != "..."]
    assert lines[0] == "wrong: 0" and set(lines) <= {line.strip() for line in out.splitlines()}
    read = 2 * 600 * 600 * (2 + 5) / 2**20
    assert lines[1].split() == ["HBM", "read", f"{read:.1f}", "MiB", f"{read:.1f}", "MiB"]


def test_the_readme_is_a_front_page():
    assert README.count("\n") <= 125


def test_the_readme_is_as_far_off_real_machines_as_the_docs_say():
    validation = (ROOT / "docs" / "validation.md").read_text()
    said = re.findall(r"([\d.]+) % \((MeshGEMM|MeshGEMV)\)", " ".join(README.split()))
    assert {kernel for _, kernel in said} == {"MeshGEMM", "MeshGEMV"}
    for median, kernel in said:
        assert re.search(rf"^\| {kernel}, check \| \d+ \| {re.escape(median)} % \|", validation, re.MULTILINE)


def test_every_link_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page}: {target}"


def test_the_map_of_the_house_has_every_folder():
    house = (ROOT / "docs" / "house.md").read_text()
    layers = [ROOT / name for name in ("meshrt", "programs", "studies", "models", "launch")]
    folders = {path.parent for layer in layers for path in layer.rglob("__init__.py")}
    assert len(folders) > 15
    for folder in folders:
        assert re.search(rf"\b{folder.name}/", house), folder


def test_every_file_says_what_it_is_about():
    """docs/files.md has these words."""
    silent = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h") and path.read_text().strip() and not first_words(path)
    ]  # fmt: skip
    assert not silent


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/adding.md", "docs/decisions/007-packaging.md"])
def test_files_that_a_page_names_are_there(page: str):
    tops = "meshrt|programs|studies|models|launch|tests|ci|docs|examples"
    named = re.findall(rf"`((?:{tops})/[\w./-]*)", (ROOT / page).read_text())
    assert named
    for path in named:
        assert (ROOT / path).exists(), path
    for name, path in re.findall(rf"`(\w+)` (?:of|in)\s+`((?:{tops})/[\w./-]*\.py)`", (ROOT / page).read_text()):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), f"{name} of {path}"
