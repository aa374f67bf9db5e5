"""The commands of docs/mistakes.md, each with the answer and the exit code that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lines import run_lines

PAGE = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text()
ROW = re.compile(r"^\| `meshrt ([^`]+)` \| [^|]+ \|(?: `([^|]+)`)? \| (\d) \|$", re.MULTILINE)
ROWS = {command: (answer, int(code)) for command, answer, code in ROW.findall(PAGE)}
LINES = "from meshrt.mesh.wires.tables import installed\nfrom meshrt.mesh.wires.routes import chain\n"
FILES = {
    "star.py": "def run(block, size=3):\n    return {}\n",
    "helper.py": "SIZE = 3\n",
    "beside.py": "from helper import SIZE\ndef run(block):\n    block.tiles('t', (SIZE,), 'f')\n    return {}\n",
    "absent.py": "import torch_of_tomorrow\ndef run(block):\n    return {}\n",
    "raises.py": "def run(block):\n    raise ValueError('on purpose')\n",
    "unwritten.py": "def run(block):\n    return {'s': float(block.tiles('t', (3,), 'f').sum())}\n",
    "shape.py": f"{LINES}from meshrt.mesh.wires.fabric import transfer\ndef run(block):\n"
    "    t = block.tiles('t', (8,), 'f')\n    t[...] = 1\n"
    "    with installed(block, 'x', chain) as way:\n        transfer(block, way, t[0], t)\n",
    "route.py": f"{LINES}def run(block, *, axis: str = 'x'):\n"
    "    with installed(block, axis, chain(block.mesh.width + 2)):\n        return {}\n",
    "path.py": "from meshrt.mesh.wires.tables import installed\n"
    "def run(block):\n    way = (0, 0), (1, 0), (1, 1), (1, 2)\n"
    "    with installed(block, None, [way]):\n        return {}\n",
    "sides.py": "def run(block):\n    a, b = block.tiles('a', (8, 3), 'f'), block.tiles('b', (4, 8), 'f')\n"
    "    return {'c': float(block.matmul(a, b).sum())}\n",
    "plain.py": "import numpy as np\ndef run(block):\n    a = np.ones((*block.lead, 1000))\n"
    "    return {'s': float((2 * a).sum())}\n",
    "gathered.py": "from meshrt.mesh.collectives.broadcast import spreads, start_allgather\ndef run(block):\n"
    "    t = block.tiles('t', (256,), 'f')\n    t[...] = 1\n"
    "    with spreads(block) as (along_x, _):\n        start_allgather(block, along_x, t)\n",
    "empty.py": "def run(block, *, size: int = 0):\n    return {'s': float(block.tiles('t', (size,), 'f').sum())}\n",
    "number.py": "def run(block):\n    block.tiles('t', 8, 'f')\n    return {}\n",
    "stage.py": f"{LINES}import numpy as np\nfrom meshrt.mesh.wires.software import stage\ndef run(block):\n"
    "    with installed(block, 'x', chain) as way:\n"
    "        stage(block, way, 1, np.ones(3, bool))\n    return {}\n",
    "flat.py": "def run(block):\n    a = block.tiles('a', (8,), 'f')\n"
    "    return {'c': float(block.matmul(a.repeat(8, 1), a.repeat(8, 1)).sum())}\n",
    "adds.py": f"{LINES}from meshrt.mesh.wires.fabric import transfer\ndef add(here, came):\n    here += came\n"
    "def run(block):\n    t = block.tiles('t', (8,), 'f')\n    t[...] = 1\n"
    "    with installed(block, 'x', chain) as way:\n        transfer(block, way, t, t, combine=add)\n",
    "swapped.py": f"{LINES}from meshrt.mesh.wires.fabric import transfer\ndef run(block):\n"
    "    t = block.tiles('t', (8,), 'f')\n    t[...] = 1\n"
    "    with installed(block, 'x', chain) as way:\n        transfer(block, 'x', t, t)\n",
    "named.py": "def run(block):\n    with block.phase(3):\n        return {}\n",
    "sized.py": "MESH = 8\ndef run(block):\n    return {}\n",
    "quiet.py": "def run(block, *, quiet: bool = False):\n    return {}\n",
    "story.txt": "Once upon a time\n",
    "some.gguf": "GGUF",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    paths = {mark + name: f"{mark}{folder}/{name}" for name in FILES for mark in ("", "@")}
    lines = {line: [paths.get(word, word) for word in line.split()] for line in ROWS}
    return run_lines(lines, tmp_path_factory.mktemp("lines"))


def test_the_page_has_rows() -> None:
    assert len(ROWS) == PAGE.count("\n| `meshrt ") > 20


@pytest.mark.parametrize("line", ROWS)
def test_a_mistake_is_answered_as_the_page_says(line: str, outcomes: dict[str, tuple[int, str, str]]) -> None:
    answer, expected = ROWS[line]
    code, _, err = outcomes[line]
    assert code == expected, err
    assert answer.replace("`", "'") in err.replace("`", "'")
    assert bool(err) == bool(answer) and "Traceback" not in err
