"""The README's example programs do what the README says, word for word."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import Finished

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_example_runs_and_prints_what_is_shown(ranks: int, tmp_path: Path, run_meshrt: Callable[..., Finished]):
    (tmp_path / "rowsum.py").write_text(README.split("```python\n")[1].split("```")[0])
    code, out, err, _ = run_meshrt("run", str(tmp_path / "rowsum.py"), "--size", "100", ranks=ranks)
    shown = README.split("meshrt run rowsum.py --size 100\n")[1].split("\n\n")[0].strip()
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == shown == "sum: 15"


def test_the_example_keeps_to_what_the_readme_expects_of_a_program(tmp_path: Path, run_meshrt: Callable[..., Finished]):
    """The compliance check's own example line, on the example program: it runs by shape as well."""
    (tmp_path / "my_program.py").write_text(README.split("```python\n")[1].split("```")[0])
    (line,) = (line for line in README.splitlines() if "meshrt plmr my_program.py" in line)
    argv = shlex.split(line)[1:]
    argv[1] = str(tmp_path / "my_program.py")
    code, _, err, _ = run_meshrt(*argv, "--sizes", "4,6,8")
    assert code == 3 and err.splitlines()[0] == "meshrt: error: a stated bound does not hold"
    assert all(": hops at N = " in line for line in err.splitlines()[1:]), "a K-tree's longest packet is more than 2"
    code, _, err, _ = run_meshrt(*argv[:-1], "entries=12,stages~N^0.5", "--sizes", "4,6,8")
    assert (code, err) == (0, "")


def test_the_example_of_other_cores_for_decode_runs_and_no_number_of_it_is_cut_off(run_meshrt: Callable[..., Finished]):
    (line,) = (line for line in README.splitlines() if "--decode-mesh" in line)
    code, out, err, _ = run_meshrt(*line.split()[1:])
    assert (code, err) == (0, "")
    assert "change of cores" in out and "\N{HORIZONTAL ELLIPSIS}" not in out


def test_the_kernel_runs_and_prints_what_is_shown(tmp_path: Path, run_meshrt: Callable[..., Finished]):
    """x crosses once for each of ceil(600 / 512) = 2 blocks of columns, y once for each of ceil(600 / 128) = 5."""
    blocks = [block.split("```")[0] for block in README.split("```python\n")[1:]]
    (kernel,) = (block for block in blocks if block.startswith('"""tiled.py'))
    (tmp_path / "tiled.py").write_text(kernel)
    code, out, err, _ = run_meshrt("run", str(tmp_path / "tiled.py"), "--size", "600")
    assert (code, err) == (0, "")
    shown = README.split("meshrt run tiled.py --size 600\n")[1].split("\n\n")[0].splitlines()
    lines = [line.strip() for line in shown if line.strip() != "..."]
    assert lines[0] == "wrong: 0" and set(lines) <= {line.strip() for line in out.splitlines()}
    read = 2 * 600 * 600 * (2 + 5) / 2**20
    assert lines[1].split() == ["HBM", "read", f"{read:.1f}", "MiB", f"{read:.1f}", "MiB"]
