"""The README's example program does what the README says, word for word."""

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
