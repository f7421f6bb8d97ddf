# SPDX-License-Identifier: GPL-2.0-only
"""The report of a trace: three lines on what is odd about it, then tables. Every number comes from a df_ function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from ..errors import NotRecordedError, UsageError
from ..trace import Trace
from .distance import NAMES
from .loss import clean_share, df_clean
from .sections import REPLAYED, SECTIONS, Finding, Section, View

ROWS = 12  # of a long table shown on a terminal; JSON has all
NAMED = 8  # tasks named in a cell; JSON has all
TEXT = 60  # columns of a terminal at which a cell that holds text is folded
ODD = 3
HIDDEN = ("code", "waker_code", "wakee_code")  # what joins tables in JSON


@dataclass
class Report:
    """What build_report found: facts about the trace, the three findings that lead it, sections in order; view is what
    it was asked to look at.
    """

    view: View
    facts: dict[str, Any]
    odd: list[Finding]
    sections: list[Section]

    def to_json(self) -> dict[str, Any]:
        """Plain data: the facts, odd (three sentences), sections {name: {table: [row as {column: value}]}}, missing
        {section: why it is empty}. A value that is unknown or does not exist is null.
        """
        return {
            **self.facts,
            "odd": [f.text for f in self.odd],
            "sections": {s.name: {t.name: _records(t.data) for t in s.tables} for s in self.sections},
            "missing": {s.name: s.missing for s in self.sections if s.missing},
        }

    def render(self, console: Console) -> None:
        """Write the report to a console; names from the trace are escaped, control characters replaced."""
        for finding in self.odd:
            console.print(f"• {shown(finding.text)}", highlight=False)
        for section in self.sections:
            console.print(f"\n[bold]{section.title}[/bold]", highlight=False)
            if section.missing:
                console.print(shown(section.missing), highlight=False)
            for table in section.tables:
                none = "" if len(table.data) else ": none"
                console.print(f"[italic]{table.title}[/italic]{none}", highlight=False)
                if len(table.data):
                    _print_whole(console, _rich(table.data))


def build_report(
    trace: Trace,
    sections: Iterable[str] | None = None,
    task: str | None = None,
    load_replay: Callable[[Trace], pd.DataFrame | None] = lambda _: None,
) -> Report:
    """Compute the report of a trace.

    sections: names out of SECTIONS, all by default; task: a pid or name pattern (tasks.selected); load_replay: gives
    the model's replay (model.paths.df_replay), called only if a section wants it. Raises UsageError for an unknown
    section or task, TraceError if a table is damaged or a section asked for by name needs one the trace lacks; without
    names such a section says so instead.
    """
    names = list(SECTIONS) if sections is None else list(dict.fromkeys(sections))
    for name in names:
        if name not in SECTIONS:
            raise UsageError(f"there is no section {name!r}: choose from {', '.join(SECTIONS)}")
    built: dict[str, Section] = {}
    with ThreadPoolExecutor(
        1
    ) as beside:  # the replay takes long, and compiled code does not hold the interpreter's lock
        asked = not REPLAYED.isdisjoint(names)
        view = View(trace, task, beside.submit(load_replay, trace).result if asked else lambda: None)
        for name in sorted(names, key=lambda name: name in REPLAYED):
            try:
                built[name] = SECTIONS[name](view)
            except NotRecordedError as error:
                if sections is not None:
                    raise
                built[name] = Section(name, name.capitalize(), missing=str(error))
    facts = _facts(trace)
    ranked = sorted((f for name in names for f in built[name].findings), key=lambda f: -f.weight)
    early = [Finding(math.inf, f"The recording ended early: {facts['ended_early']}")] if facts["ended_early"] else []
    return Report(view, facts, [*early, *ranked, *_plain(facts)][:ODD], [built[name] for name in names])


def shown(text: str) -> str:
    """Text safe to print through rich: markup escaped, whatever is not printable replaced."""
    return escape(printable(text))


def printable(text: str) -> str:
    """Text with whatever is not printable replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def visible(data: pd.DataFrame) -> list[str]:
    """Columns that people are shown: not those that join tables, nor distances that do not occur."""
    far = NAMES if set(NAMES) <= set(data.columns) else []  # a column cpu by itself is a CPU
    return [str(c) for c in data.columns if not (c in HIDDEN or (c in far and not data[c].any()))]


def is_text(column: pd.Series[Any]) -> bool:
    """Whether a column holds names and not numbers."""
    return not pd.api.types.is_numeric_dtype(column)


def cell(column: str, value: Any) -> str:
    """A value as people are shown it: shares in percent, unknown values as a dash."""
    value = _plain_value(value)
    if value is None:
        return "-"
    if isinstance(value, list):
        more = len(value) - NAMED
        return ", ".join(map(str, value[:NAMED])) + (f", … {more} more" if more > 0 else "")
    if isinstance(value, float):
        return f"{value:.1%}" if column.endswith("share") or column == "clean" else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _facts(trace: Trace) -> dict[str, Any]:
    begin, end = trace.span
    return {
        "trace": str(trace.path),
        "kernel": trace.meta.get("kernel"),
        "tier": trace.meta.get("tier"),
        "duration_s": (end - begin) / 1e9,
        "wakeups": trace.rows("wakeups"),
        "switches": trace.rows("switches"),
        "lost": int(df_clean(trace)["lost"].sum()),
        "clean_share": clean_share(trace),
        "ended_early": trace.meta.get("ended_early"),
    }


def _plain(facts: dict[str, Any]) -> list[Finding]:
    """What is said when too little is odd."""
    lost = f"{facts['lost']:,} records lost" if facts["lost"] else "nothing lost"
    return [
        Finding(0, f"{facts['wakeups']:,} wakeups and {facts['switches']:,} switches in {facts['duration_s']:.1f} s"),
        Finding(0, f"{lost}; {facts['clean_share']:.1%} of the span is clean"),
        Finding(0, f"Kernel {facts['kernel']}, tier {facts['tier']}: nothing else stands out"),
    ]


def _records(data: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(c): _plain_value(v) for c, v in row.items()} for row in data.to_dict("records")]


def _plain_value(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rich(data: pd.DataFrame) -> RichTable:
    more = len(data) - ROWS
    caption = f"{more:,} more rows with --json" if more > 0 else None
    table = RichTable(caption=caption, caption_justify="left", box=None)
    names = visible(data)
    for column in names:
        if is_text(data[column]):
            table.add_column(column, overflow="fold", min_width=len(column), max_width=TEXT)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    for row in data[names].head(ROWS).itertuples(index=False):
        table.add_row(*(shown(cell(c, v)) for c, v in zip(names, row, strict=True)))
    return table


def _print_whole(console: Console, table: RichTable) -> None:
    """Print a table at its own width, however narrow the console: half a number is a wrong one."""
    width = console.width
    console.width = max(width, Measurement.get(console, console.options.update(max_width=10_000), table).maximum)
    console.print(table)
    console.width = width
