"""A page of reports in HTML, whole in one file: it asks for nothing from anywhere, on a desk, a phone or paper."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from meshrt.errors import UsageError
from meshrt.machine import find_machine
from meshrt.reports.kinds import legend
from meshrt.reports.report import Report
from meshrt.reports.roofline import parts_of, rows
from meshrt.studies.again import again, preset_of, untold
from meshrt.studies.grid import shown
from meshrt.studies.pictures.heat import COLOURS, in_words, levels, pooled
from meshrt.studies.pictures.maps import Picture, RunMaps, picture, there
from meshrt.studies.pictures.steppage import kinds_of_path, steps_of, timeline_of
from meshrt.studies.pictures.traces import RunTrace
from meshrt.units import of

MOST = 256  # cells of a picture along a side: of more cores a cell is a square
STYLE = """
:root{color-scheme:light dark;--line:#8886;--bar:#cc4778}
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem;border-top:1px solid var(--line);padding-top:1rem}
div.wide{overflow-x:auto}table{border-spacing:0;font-variant-numeric:tabular-nums}
th,td{padding:2px .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td.text{text-align:left}td.text{white-space:normal;overflow-wrap:anywhere}
th:first-child{position:sticky;left:0;background:Canvas}
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line)}
.bar{background:var(--bar);height:1rem;min-width:1px;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.steps{width:100%}.steps .text{text-align:left;width:60%}.steps td.when{min-width:3rem;width:15%}
@media (max-width:40rem){.steps,.steps thead,.steps tbody{display:block}.steps th,.steps td{border:0}
.steps tr{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));grid-auto-flow:dense}
.steps tr{border-bottom:1px solid var(--line)}
.steps tr>:nth-child(4){text-align:left;white-space:normal}.steps .text{grid-column:1/4;width:auto}
.steps tr .when{grid-column:2/4;width:auto}}
.maps{display:flex;flex-wrap:wrap;gap:1.5rem}figure{margin:0;flex:1 1 18rem;max-width:34rem;break-inside:avoid}
figure img{width:100%;image-rendering:pixelated;border:1px solid var(--line);touch-action:none}
output{display:block;min-height:1.5em;font-weight:600}figcaption{font-size:.9rem}
@media print{body{max-width:none;font-size:11pt}output{display:none}pre{white-space:pre-wrap}h2{break-after:avoid}
div.wide{overflow:visible}table{break-inside:avoid}th:first-child{position:static;background:none}
figure{max-width:45%}.pairs{columns:2}.steps,.pairs table{break-inside:auto}tr,li{break-inside:avoid}}
"""
POINTER = """
for(const f of document.querySelectorAll("figure[data-side]")){
const i=f.querySelector("img"),o=f.querySelector("output"),v=JSON.parse(f.querySelector("script").textContent);
const s=+f.dataset.side;
const p=e=>{const b=i.getBoundingClientRect(),x=Math.floor((e.clientX-b.left)/b.width*v[0].length),
y=Math.floor((e.clientY-b.top)/b.height*v.length);if(v[y]===undefined||v[y][x]===undefined)return;
const k=f.dataset.each?JSON.parse(f.dataset.each):0,c=n=>"("+n*s*k[0]%k[1]*k[2]+", "+Math.floor(n*s*k[0]/k[1])*k[2]+")";
o.textContent=(k?"from core "+c(y)+" to core "+c(x):f.dataset.one?f.dataset.one+" "+x*s:
(s>1?"cores from (":"core (")+x*s+", "+y*s+")")+
(s>1?", "+s+" x "+s+", the most":"")+": "+v[y][x].toLocaleString("en")+" "+f.dataset.unit};
i.addEventListener("pointermove",p);i.addEventListener("pointerdown",p)}
"""


class PageRun(NamedTuple):
    """A run of a page: its report, its maps and its trace if it has any, and how it was started if that is known; or
    the name of the file that the report is from.
    """

    report: Mapping[str, Any]
    maps: RunMaps | None = None
    trace: RunTrace | None = None
    command: str | None = None
    name: str | None = None


def write_page(runs: Sequence[PageRun]) -> str:
    """The page of some runs. UsageError for a file that is no whole report."""
    body = "".join(_whole(run) for run in runs)
    title = " and ".join(f"{run.report['program']} on {run.report['device']['name']}" for run in runs)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body>{body}<script>{POINTER}</script></body></html>\n"
    )


def _whole(run: PageRun) -> str:
    """All that is told of a run. UsageError where the file that it is from lacks something."""
    try:
        return "".join(_sections(run))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if run.name is None:
            raise
        raise UsageError(
            f"{run.name} is no whole report of this version of meshrt ({type(error).__name__}: {error}); run it again"
        ) from error


def _sections(run: PageRun) -> Iterator[str]:
    report, maps, trace, command, _ = run
    machine = find_machine(report["machine"])
    yield f"<h1>{escape(machine.title(report))}</h1>"
    yield "<h2>Numbers</h2>"
    yield _table(
        ["", *(phase["name"] for phase in report["phases"]), "total"],
        [[row.name + of(row.limit), *row.cells] for row in machine.rows(report)],
    )
    yield f"<p>{escape(legend(report))}</p>"
    if report["phases"]:
        yield f"<h2>Phases</h2>{_phases(report)}"
    yield f"<h2>Critical path</h2>{_path(report)}{steps_of(report, trace)}"
    if (kinds := kinds_of_path(report, trace)) is not None:
        yield f"<p>The same by what it was, in each phase:</p>{_table(*kinds)}"
    words, timeline = timeline_of(report, trace)
    yield f"<h2>Timeline</h2><p>{escape(words)}</p>{'' if timeline is None else _table(*timeline)}"
    whole = Report(report)
    parts = parts_of(whole, str(report["program"]))
    roofs = [[row.name, *row.cells] for row in rows(whole, parts)]
    yield f"<h2>Roofline</h2>{_table(['', *(part.name for part in parts)], roofs)}"
    if maps is not None:
        yield f'<h2>Cores and links</h2><div class="maps">{"".join(_figure(drawn) for drawn in _pictures(maps))}</div>'
    yield f"<h2>Result</h2>{_pairs(report['result'])}"
    yield f"<h2>Arguments</h2>{_pairs(report['arguments'])}"
    yield f"<h2>Device</h2>{_pairs(_device(report))}{_sources(report)}"
    yield "<h2>How to repeat it</h2>"
    if command is None:
        yield f"<p>{escape(' '.join(untold(report)))}</p>"
    yield f"<pre>{escape(command or again(report))}</pre>"
    version = report["host"].get("version", "unknown")
    ranks = report["host"].get("ranks", 1)
    yield f"<p>meshrt {escape(str(version))}; ranks: {ranks}, of which any number gives the same.</p>"


def _device(report: Mapping[str, Any]) -> dict[str, Any]:
    """Its numbers; those that were replaced with what they were."""
    preset, numbers = preset_of(report), report["device"]
    changed = {key for key, value in numbers.items() if json.dumps(preset.get(key, value)) != json.dumps(value)}
    return {key: f"{_text(value)}, in place of {_text(preset[key])}" if key in changed else value
            for key, value in numbers.items()}  # fmt: skip


def _sources(report: Mapping[str, Any]) -> str:
    sources = preset_of(report).get("sources", ())
    return f"<ul>{''.join(f'<li>{escape(source)}</li>' for source in sources)}</ul>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th>{escape(key)}</th><td class="text">{escape(_text(value))}</td></tr>' for key, value in values.items()
    )
    return f'<div class="wide pairs"><table><tbody>{rows}</tbody></table></div>' if rows else "<p>none</p>"


def _text(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, (list, dict)) else shown(value) if value is not None else "not given"
    return text if len(text) <= 300 else f"{text[:300]} ... ({len(text)} characters)"


def _phases(report: Mapping[str, Any]) -> str:
    """Each phase's part of the time."""
    whole = report["measured"]["critical_path"]["seconds"] or 1.0
    rows = []
    for phase in report["phases"]:
        seconds = phase["critical_path"]["seconds"]
        rows.append(
            f"<tr><th>{escape(phase['name'])}</th><td>{1e6 * seconds:,.3f} us</td><td>{seconds / whole:.1%}</td>"
            f'<td style="width:50%"><div class="bar" style="width:{min(1, seconds / whole):.2%}"></div></td></tr>'
        )
    return f'<table style="width:100%"><tbody>{"".join(rows)}</tbody></table>'


def _path(report: Mapping[str, Any]) -> str:
    """What is measured of the chain of events that the last core, or device, had to wait for."""
    parts = [*report["phases"], {**report["measured"], "name": "total"}]
    keys = [*report["measured"]["critical_path"]]
    rows = [[part["name"], *(_of_path(key, part["critical_path"].get(key)) for key in keys)] for part in parts]
    return _table(["", *keys], rows)


def _of_path(key: str, value: Any) -> str:
    """As the tables have it: time in microseconds, as of phases, and no fractions of a cycle."""
    if key == "seconds" and value is not None:
        return f"{1e6 * value:,.3f} us"
    return f"{value:,.0f}" if isinstance(value, float) else shown(value)


def _pictures(maps: RunMaps) -> Iterator[Picture]:
    sites = maps.about["sites"]
    for site in [None] if len(sites) == 1 else sites:
        for quantity in there(maps):
            drawn = picture(maps, quantity, "total", site)
            if drawn.values.any():
                yield drawn


def _figure(drawn: Picture) -> str:
    side = -(-max(drawn.values.shape) // MOST)
    values = pooled(drawn.values, side)
    image = base64.b64encode(_png(levels(values))).decode()
    numbers = json.dumps([[round(value, 4) if value % 1 else int(value) for value in row] for row in values.tolist()],
                         separators=(",", ":"))  # fmt: skip
    each = "" if drawn.each is None else f' data-each="{[drawn.each.step, drawn.each.columns, drawn.each.side]}"'
    named = "" if drawn.one == "core" else f' data-one="{escape(drawn.one)}"'
    return (
        f'<figure data-side="{side}" data-unit="{escape(drawn.unit)}"{each}{named}><img alt="{escape(drawn.title)}"'
        f' src="data:image/png;base64,{image}"><output></output>'
        f"<figcaption>{escape(drawn.title)}. {escape(in_words(drawn))}</figcaption>"
        f'<script type="application/json">{numbers}</script></figure>'
    )


def _png(tenths: np.ndarray) -> bytes:
    """Levels, int [H, W], as a picture of their colours, a pixel each; those of -1 are transparent."""
    height, width = tenths.shape
    pixels = np.zeros((height, width + 1), np.uint8)  # a row begins with its filter: none
    pixels[:, 1:] = tenths + 1
    palette = bytes(3) + b"".join(bytes.fromhex(colour[1:]) for colour in COLOURS)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"PLTE", palette) + chunk(b"tRNS", b"\0")
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IDAT", zlib.compress(pixels.tobytes(), 9)) + chunk(b"IEND", b"")
