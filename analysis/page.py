# SPDX-License-Identifier: GPL-2.0-only
"""A report as one HTML file with figures, which needs nothing else: no network, no second file."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

from ..errors import OutputError, TraceError
from . import plots
from .report import Report, cell, is_text, printable, visible
from .sections import Section, View

ROWS = 30  # of a long table; JSON has all

FIGURES: dict[str, list[Callable[[View], plots.Figure]]] = {
    "placement": [
        lambda view: plots.plot_paths(view.trace, view.replay, view.task),
        lambda view: plots.plot_latency(view.trace, "path", view.replay, view.task),
    ],
    "flips": [
        lambda view: plots.plot_flips(view.trace, view.task),
        lambda view: plots.plot_graph(view.trace, view.task),
    ],
    "affine": [
        lambda view: plots.plot_pulls(view.trace, view.task),
        lambda view: plots.plot_stacking(view.trace, view.task),
    ],
    "latency": [
        lambda view: plots.plot_latency(view.trace, "moved", task=view.task),
        lambda view: plots.plot_latency(view.trace, "sibling", task=view.task),
    ],
    "numa": [
        lambda view: plots.plot_preferred(view.trace, view.task),
        lambda view: plots.plot_fights(view.trace, view.task),
    ],
}

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: .3em 0 1.2em; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .15em .7em; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }
th { border-bottom: 1px solid #888; font-weight: 600; }
td:first-child, th:first-child, td.text, th.text { text-align: left; }
h2 { margin-top: 1.8em; border-bottom: 2px solid #4c78a8; }
h3 { font-size: 15px; margin-bottom: 0; }
.note { color: #666; }
</style>
<script>$plotly</script>
</head>
<body>
<h1>$title</h1>
<p class="note">$facts</p>
<ul>
$odd
</ul>
$sections
</body>
</html>
""")


def check_page(path: Path) -> None:
    """Raise OutputError if the file exists, and UsageError without plotly, before anything is computed for it."""
    if path.exists():
        raise OutputError(f"{path} exists: name another file")
    plots.require()


def write_page(path: Path, report: Report) -> None:
    """Write the report as a page. Raises OutputError if it cannot be written, UsageError without plotly."""
    text = to_html(report)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None


def to_html(report: Report) -> str:
    """The page: what is odd, then every section's figures and tables, tables cut at ROWS rows."""
    plots.require()
    from plotly.offline import get_plotlyjs

    facts = report.facts
    said = f"kernel {facts['kernel']}, tier {facts['tier']}, {facts['duration_s']:.2f} s: "
    said += f"{facts['wakeups']:,} wakeups, {facts['switches']:,} switches, {facts['lost']:,} records lost"
    return PAGE.substitute(
        title=_text(Path(facts["trace"]).name),
        plotly=get_plotlyjs(),
        facts=_text(said),
        odd="\n".join(f"<li>{_text(finding.text)}</li>" for finding in report.odd),
        sections="\n".join(_section(section, report.view) for section in report.sections),
    )


def _section(section: Section, view: View) -> str:
    parts = [f'<h2 id="{section.name}">{_text(section.title)}</h2>']
    if section.missing:
        parts.append(f'<p class="note">{_text(section.missing)}</p>')
    else:
        parts += _figures(section.name, view)
    for table in section.tables:
        parts.append(f"<h3>{_text(table.title)}</h3>")
        names = visible(table.data)
        if not len(table.data):
            parts.append('<p class="note">none</p>')
            continue
        parts.append("<table><tr>" + "".join(_cell("th", n, is_text(table.data[n])) for n in names) + "</tr>")
        for row in table.data[names].head(ROWS).itertuples(index=False):
            cells = (_cell("td", cell(n, v), isinstance(v, (str, list))) for n, v in zip(names, row, strict=True))
            parts.append("<tr>" + "".join(cells) + "</tr>")
        parts.append("</table>")
        if len(table.data) > ROWS:
            parts.append(f'<p class="note">{len(table.data) - ROWS:,} more rows with --json</p>')
    return "\n".join(parts)


def _figures(name: str, view: View) -> Iterator[str]:
    """Each figure of a section that has anything to show."""
    for number, make in enumerate(FIGURES.get(name, [])):
        try:
            figure = make(view)
        except TraceError as error:
            yield f'<p class="note">{_text(str(error))}</p>'
            continue
        if figure.data:
            yield figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"{name}-{number}", default_height=420)


def _cell(tag: str, text: str, is_text: bool) -> str:
    return f"<{tag}{' class=text' if is_text else ''}>{_text(text)}</{tag}>"


def _text(text: str) -> str:
    return html.escape(printable(text))
