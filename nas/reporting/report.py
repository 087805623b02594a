"""One self-contained page about searches: figures, the front with its networks drawn, everything to download."""

from __future__ import annotations

import tempfile
from base64 import b64encode
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from nas.reporting.drawing import draw_blocks
from nas.reporting.plots import metric_label
from nas.reporting.study_figures import plot_studies
from search_spaces.common.files import replacing

if TYPE_CHECKING:
    from nas.comparison.studies import Studies

_FIGURES = {
    "pareto": "Pareto fronts",
    "parallel": "The front's networks; better is up",
    "hypervolume": "Hypervolume after each evaluation",
    "predicted": "Expected and measured",
}
_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --page: #fff; --ink: #1c2024; --soft: #5c6670; --line: #c3c9d0; --box: #f2f5f8;
  --link: #0062a3; --blue: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --ink: #e6e9ec; --soft: #9aa4ae; --line: #4a525b;
  --box: #22272d; --link: #6cb8f0; --blue: #4aa8e0; } }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p, figcaption { color: var(--soft); } a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:last-child, th:first-child, td:first-child { text-align: left; padding-left: 0; }
td small { display: block; color: var(--soft); }
td.network { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; max-width: 26rem; text-align: left;
  font: .8rem/1.35 ui-monospace, monospace; }
.figures { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; overflow-x: auto; } .figures svg { width: 100%; min-width: 22rem; height: auto; }
svg text { fill: currentColor; font-family: system-ui, sans-serif; }
details { margin: .4rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
.blocks { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1.5rem; padding: .6rem 0; overflow-x: auto; }
pre { overflow-x: auto; font-size: .78rem; background: var(--box); padding: .7rem; border-radius: .4rem; }
</style>
<h1>$title</h1>
<p>$about</p>
<h2>Samplers</h2>
<p>$yardstick</p>
<div class="wide">$samplers</div>
<h2>Figures</h2>
<div class="figures">$figures</div>
<h2>Front of $first</h2>
<p>$count networks, <a download="front.csv" href="$csv">all as CSV</a>. Small: what was predicted before the
network was measured, with one standard deviation.</p>
<div class="wide">$front</div>
<h2>The networks</h2>
$networks
</html>
""")


def write_report(path: Path, studies: Studies) -> None:
    """Write one HTML file that needs no other; front and networks are those of the first sampler's first seed."""
    first = studies.first
    texts = [first.space.to_text(first.space.parse(row["architecture"])) for row in first.front]
    objectives = ", ".join(metric_label(o.name) for o in studies.objectives)
    counts = sorted({len(result.evaluated.architectures) for group in studies.results.values() for result in group})
    searched = first.space.name if studies.benchmark is None else f"the table {studies.benchmark.name}"
    content = {
        "title": escape(f"Search for {objectives}"),
        "about": escape(
            f"In {searched}; {' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))} evaluations each."
        ),
        "yardstick": "HV@n is the share of the hypervolume of "
        + ("the true front" if studies.benchmark else "the best front of all searches here")
        + " after n evaluations, higher is better; IGD+ is the distance from that front, lower is better.",
        "samplers": _table(studies.table()),
        "figures": "".join(_figures(studies)),
        "first": escape(next(iter(studies.results))),
        "count": str(len(texts)),
        "csv": _data(studies.front_csv(), "text/csv"),
        "front": _table([_row(studies, i) for i in range(len(texts))]),
        "networks": "".join(_network(i, first.front[i]["architecture"], text) for i, text in enumerate(texts)),
    }
    with replacing(path) as file:
        file.write_text(_PAGE.substitute(content))


def _figures(studies: Studies) -> list[str]:
    """The figures as part of the page, in its colours."""
    with tempfile.TemporaryDirectory() as folder:
        plot_studies(Path(folder), studies, "svg")
        drawn = {path.stem: path.read_text() for path in Path(folder).glob("*.svg")}
    return [
        f"<figure>{_inline(drawn[name])}<figcaption>{title}</figcaption></figure>"
        for name, title in _FIGURES.items()
        if name in drawn
    ]


def _inline(svg: str) -> str:
    """An SVG file as an element in the page's colours."""
    svg = svg[svg.index("<svg") :]
    for fixed, of_page in (("#000000", "currentColor"), ("#e8e8e8", "var(--line)"), ("#0072b2", "var(--blue)")):
        svg = svg.replace(fixed, of_page)
    return svg


def _row(studies: Studies, place: int) -> dict[str, Any]:
    """A network of the front: its place, values, what was expected, and its notation."""
    row = dict(studies.first.front[place])
    notation = row.pop("architecture")
    expected = studies.first.expected.get(studies.first.space.parse(notation))
    cells: dict[str, Any] = {"": f'<td><a href="#network-{place}">{place}</a>'}
    for metric, value in row.items():
        cells[metric_label(metric)] = f"<td>{_number(value)}"
        if expected:
            mean, std = expected[metric]
            cells[metric_label(metric)] += f"<small>{_number(mean)} ± {std:.2g}</small>"
    return cells | {"network": f'<td class="network">{escape(notation)}'}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.5g}"


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows of one kind as a table; what begins with `<td` is a cell already."""
    columns = rows[0] if rows else {}
    head = "".join(f"<th>{escape(name)}" for name in columns)
    body = "".join("<tr>" + "".join(_cell(str(row[name])) for name in columns) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _cell(value: str) -> str:
    return value if value.startswith("<td") else f"<td>{escape(value)}"


def _network(place: int, notation: str, text: str) -> str:
    """A network's blocks and its text, folded up."""
    name = f"{place:02d}"
    drawn = draw_blocks(text).items()
    blocks = "".join(f"<figure>{svg}<figcaption>{escape(block)}</figcaption></figure>" for block, svg in drawn)
    return (
        f'<details id="network-{place}"{" open" if not place else ""}><summary>{place}: {escape(notation)}</summary>'
        f'<div class="blocks">{blocks}</div>'
        f'<p><a download="{name}.txt" href="{_data(text, "text/plain")}">ONNX text</a> · '
        f'<a href="front/{name}.onnx">ONNX model</a> (beside this page)</p><pre>{escape(text)}</pre></details>\n'
    )


def _data(content: str, kind: str) -> str:
    return f"data:{kind};base64,{b64encode(content.encode()).decode()}"
