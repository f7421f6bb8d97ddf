# SPDX-License-Identifier: GPL-2.0-only
"""How the command line shows patches and contrasts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from .analysis.report import shown
from .errors import OutputError
from .model.contrast import LEVELS, MARKS, OPEN_LOOP, Comparison, Contrast
from .model.numa_retry import COUNTS
from .model.variants import Patch

ROWS = 10  # tasks, pairs and moves shown; JSON has all
HEADS = {
    "wide": "wide",
    "on_waker": "on waker's CPU",
    "stacked": "stacked",
    "stacked_llc": "stacked in LLC",
    "cross_node": "to another node",
}


def show_patches(console: Console, patches: Iterable[Patch]) -> None:
    """Each patch: name, what it changes, where it comes from, what became of it."""
    for patch in patches:
        console.print(f"[bold]{patch.name}[/bold]")
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 2))
        facts = {
            "changes": patch.changes,
            "origin": patch.origin,
            "fate": patch.fate,
            "applies to": ", ".join(patch.kernels()) or "none of the modelled kernels",
        }
        for head, text in facts.items():
            table.add_row(head, shown(text))
        console.print(table)


def show_contrast(console: Console, found: Contrast) -> None:
    """What each policy does, then how each differs from the first."""
    console.print(OPEN_LOOP)
    console.print(
        "stacked: on a busy CPU though an allowed one was idle (in LLC: one that shares its cache); bounds are "
        "Wilson's at 95 % of all decisions, wide enough for any outcome of those that are undecidable"
    )
    console.print(_policies(found))
    left = found.not_replayed
    forks = ""
    if left["forks"] or left["execs"]:
        forks = (
            f"{left['forks']:,} forks and {left['execs']:,} execs (recorded without the loads of groups), of which "
            f"{left['to_another_node']:,} went to another node; "
        )
    console.print(
        f"not replayed: {forks}{left['delayed']:,} wakeups of tasks still queued and {left['wakelist']:,} queued to "
        "the CPU the task was leaving, which kernels before 6.12 and 5.8 placed"
    )
    notes: dict[str, list[str]] = {}
    for judged in found.policies:
        for note in judged.notes:
            notes.setdefault(note, []).append(judged.name)
    for note, names in notes.items():
        console.print(f"[yellow]•[/yellow] {shown(', '.join(names))}: {shown(note)}")
    if any(judged.forks for judged in found.policies):
        console.print(_forks(found))
    if any(judged.numa for judged in found.policies):
        console.print(_numa(found))
    for comparison in found.comparisons:
        _show_comparison(console, comparison)


def _policies(found: Contrast) -> Table:
    table = Table("", "decided", "undecidable", *HEADS.values(), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for judged in [found.kernel, *found.policies]:
        decided = int(judged.decisions["decided"].sum())
        shares = [_share(share) for share in judged.shares().values()]
        if judged is found.kernel:
            shares[MARKS.index("wide")] = ("-", "")  # not seen from outside
        counts = (f"{decided:,}", f"{len(found.decisions) - decided:,}")
        table.add_row(shown(judged.name), *counts, *(share for share, _ in shares))
        table.add_row("", "", "", *(f"[dim]{bounds}[/dim]" for _, bounds in shares))
    return table


def _forks(found: Contrast) -> Table:
    table = Table("", "stay on the node", "go to another", "undecided", title="forks and execs", box=None)
    table.title_justify = "left"
    for judged in found.policies:
        if judged.forks:
            counts = (judged.forks.stays, judged.forks.goes, judged.forks.undecided)
            table.add_row(shown(judged.name), *(f"{count:,}" for count in counts))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _numa(found: Contrast) -> Table:
    heads = [name.replace("_", " ") for name in COUNTS]
    title = "NUMA placement: hint faults, and what numa_migrate_preferred makes of them"
    table = Table("", *heads, "last attempt", "open", title=title, title_justify="left", box=None)
    for judged in found.policies:
        data = judged.numa.to_json() if judged.numa else {}
        last = "never" if data["last_attempt_ms"] is None else f"{data['last_attempt_ms'] / 1e3:.3f} s"
        table.add_row(shown(judged.name), *(f"{data[name]:,}" for name in COUNTS), last, f"{data['open']:,}")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _show_comparison(console: Console, comparison: Comparison) -> None:
    data = comparison.to_json()
    console.print(f"\n[bold]{shown(data['base'])} → {shown(data['policy'])}[/bold]")
    decisions = data["decided"] + data["undecidable"]
    undecidable = f"; {data['undecidable']:,} cannot be decided under both" if data["undecidable"] else ""
    share, bounds = _share(data["moved"])
    console.print(f"{share} ({bounds}) of {decisions:,} decisions move{undecidable}")
    if data["distances"]:
        far = ", ".join(f"{n:,} {name}" for name, n in data["distances"].items())
        console.print(f"how far apart the two CPUs are: {far}")
    for mark, change in data["changes"].items():
        if change["gained"]["count"] or change["lost"]["count"]:
            parts = [f"{change[what]['count']:,} {what}, {_bounds(change[what])}" for what in ("gained", "lost")]
            if mark == "wide" and change["gained"]["unknown"]:  # not those whose CPU is undecidable, as for the others
                parts.append(f"{change['gained']['unknown']:,} unknown")
            console.print(f"{HEADS[mark]}: {change['base']:,} → {change['other']:,} ({'; '.join(parts)})")
    moves = comparison.df_from_to().sort_values("decisions", ascending=False, kind="stable")
    changed = [mark for mark, change in data["changes"].items() if change["gained"]["count"] or change["lost"]["count"]]
    for level in LEVELS:
        _show_rows(console, f"moves to another {level}", moves[moves["level"] == level].drop(columns="level"))
    kinds = comparison.df_by("kind")
    if len(kinds) > 1:
        _show_rows(console, "wakeups, forks and execs", _before_after(kinds, changed))
    _show_rows(console, "by wakee", _before_after(comparison.df_by("wakee"), changed))
    _show_rows(console, "by waker and wakee", _before_after(comparison.df_by("waker", "wakee"), changed))


def _before_after(rows: pd.DataFrame, marks: list[str]) -> pd.DataFrame:
    """Rows with moves, their share's bounds, and each mark that changes at all as "before → after"."""
    rows = rows[rows["moved"] > 0]
    told = {"undecidable": rows["undecidable"].any(), "wide_unknown": "wide" in marks and rows["wide_unknown"].any()}
    hidden = ("_base", "_other", "low", "high", *(name for name, tell in told.items() if not tell))
    kept = rows[[name for name in rows.columns if not name.endswith(hidden)]].copy()
    kept["share"] = [_bounds({"low": low, "high": high}) for low, high in zip(rows["low"], rows["high"], strict=True)]
    for mark in marks:
        kept[HEADS[mark]] = [f"{a:,} → {b:,}" for a, b in zip(rows[f"{mark}_base"], rows[f"{mark}_other"], strict=True)]
    return kept


def _show_rows(console: Console, title: str, rows: pd.DataFrame) -> None:
    if not len(rows):
        return
    heads = [name.replace("_", " ") for name in rows.columns]
    more = f", {ROWS} of {len(rows):,}" if len(rows) > ROWS else ""
    table = Table(*heads, title=title + more, title_justify="left", box=None)
    for row in rows.head(ROWS).itertuples(index=False):
        table.add_row(*(f"{value:,}" if isinstance(value, int) else shown(str(value)) for value in row))
    for column, name in zip(table.columns, rows.columns, strict=True):
        column.justify = "left" if name in ("kind", "waker", "wakee") else "right"
    console.print(table)


def _share(share: dict[str, Any]) -> tuple[str, str]:
    """A count with its share, or the least and most it may be; and the bounds of the share."""
    if share["low"] is None:
        return "-", ""
    bounds = _bounds(share)
    if share["unknown"]:
        return f"{share['count']:,} to {share['count'] + share['unknown']:,}", bounds
    return f"{share['count']:,}  {share['share']:.2%}", bounds


def _bounds(share: Mapping[str, Any]) -> str:
    return f"{share['low']:.2%} – {share['high']:.2%}"


def check_parquet(path: Path) -> None:
    """Raise OutputError if write_parquet cannot make this file, before anything is replayed for it."""
    if path.exists():
        raise OutputError(f"{path} exists: name another file")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: {path.parent} is not a folder that can be written to")


def write_parquet(path: Path, found: Contrast) -> None:
    """Write Contrast.df(), whole or not at all. Raises OutputError if the file cannot be written."""
    table = found.df()
    try:
        with path.open("xb") as file:
            try:
                table.to_parquet(file, compression="zstd", index=False)
            except BaseException:
                path.unlink()
                raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
