# SPDX-License-Identifier: GPL-2.0-only
"""How the command line shows things: status lines, tables and trees. Names from traces are escaped here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from .analysis.loss import clean_share, df_clean
from .analysis.report import shown
from .schema import Outcome
from .topology import Topology
from .trace import Trace

if TYPE_CHECKING:
    from .model.reasons import Reason
    from .model.validate import Agreement, Share, Validation
    from .tracers.doctor import Check
    from .tracers.recorder import Progress

_STYLES = {"ok": "green", "note": "yellow", "bad": "red"}
_SOURCES = {"measured": "green", "derived": "cyan", "unknown": "yellow"}


class Status:
    """A line that is rewritten while a recording or a conversion runs; says nothing where stderr is no terminal."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._rows = 0

    def progress(self, p: Progress) -> None:
        """Show a recording's progress."""
        loss = f"  [red]{p.lost:,} lost[/red]" if p.lost else "  0 lost"
        self._show(f"recording {p.seconds:6.1f} s  {p.records:,} records  {p.rate:,.0f}/s  ring {p.fill:.0%}{loss}")

    def convert(self, table: str, rows: int) -> None:
        """Show rows turned into Parquet."""
        self._rows += rows
        self._show(f"writing {table}: {self._rows:,} records so far")

    def _show(self, text: str) -> None:
        if self._live:
            self._live.update(Text.from_markup(text))


@contextmanager
def status_line(console: Console) -> Iterator[Status]:
    """A Status for the block, gone without a trace after it."""
    if not console.is_terminal:
        yield Status(None)
        return
    with Live(Text(""), console=console, transient=True, refresh_per_second=4) as live:
        yield Status(live)


def show_checks(console: Console, checks: list[Check]) -> None:
    """Doctor's findings, one a row, remedies below what needs one."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        style = _STYLES[check.state]
        remedy = f"\n→ {escape(check.remedy)}" if check.remedy else ""
        table.add_row(f"[{style}]{check.state}[/{style}]", check.name, escape(check.found) + remedy)
    console.print(table)


def info_json(trace: Trace) -> dict[str, Any]:
    """The object of `info --json` (docs/json.md)."""
    meta = trace.meta
    start, stop = trace.span
    outcomes = trace.df("wakeups", ["outcome"])["outcome"] if trace.has("wakeups") else pd.Series(dtype=int)
    return {
        "kernel": meta.get("kernel"),
        "kernel_version": meta.get("kernel_version"),
        "tier": meta.get("tier"),
        "loader": meta.get("loader"),
        "state": meta.get("state"),
        "command": meta.get("command"),
        "exit_status": meta.get("exit_status"),
        "duration_s": (stop - start) / 1e9,
        "wakeups": trace.rows("wakeups"),
        "decisions": int(outcomes.isin((Outcome.PLACED, Outcome.FORK, Outcome.EXEC)).sum()),
        "switches": trace.rows("switches"),
        "rows": {table: trace.rows(table) for table in meta.get("rows", {})},
        "lost": sum(r["lost"] for r in meta.get("rings", [])),
        "rings": meta.get("rings", []),
        "clean_share": clean_share(trace),
        "hz": meta.get("hz"),
        "cpus": len(trace.topology.cpus),
        "ended_early": meta.get("ended_early"),
        "not_stock": meta.get("not_stock", []),
        "refused": meta.get("refused", {}),
    }


def show_info(console: Console, trace: Trace) -> None:
    """What a trace is, a fact a row, then loss per ring and CPU where there was any."""
    data = info_json(trace)
    table = Table(box=None, show_header=False, pad_edge=False)
    command = " ".join(data["command"]) if data["command"] else "until stopped"
    facts = {
        "kernel": f"{data['kernel']}  {data['kernel_version'] or ''}",
        "tier": f"{data['tier']} ({data['loader']})",
        "command": command + (f"  → {data['exit_status']}" if data["exit_status"] is not None else ""),
        "duration": f"{data['duration_s']:.2f} s, {data['cpus']} CPUs, HZ {data['hz']}",
        "records": _counts(data["rows"]),
        "decisions": f"{data['decisions']:,}",
        "lost": f"{data['lost']:,} ({data['clean_share']:.2%} of the span clean)",
    }
    if data["ended_early"]:
        facts["lost"] = f"unknown: {data['ended_early']}"
    for name, value in facts.items():
        table.add_row(name, shown(value))
    for reason in data["not_stock"]:
        table.add_row("[yellow]not stock[/yellow]", shown(reason))
    for what, why in data["refused"].items():
        table.add_row(f"[yellow]without {escape(what)}[/yellow]", shown(why))
    console.print(table)
    show_loss(console, trace)


def _counts(rows: dict[str, int]) -> str:
    """Rows of each table that has any; the migrations of wakeups are in the wakeups."""
    names = {"migrations": "migrations outside wakeups"}
    return ", ".join(f"{n:,} {names.get(table, table)}" for table, n in rows.items() if n)


def show_loss(console: Console, trace: Trace) -> None:
    """Loss per ring and CPU; nothing if there was none."""
    lost = [r for r in trace.meta.get("rings", []) if r["lost"]]
    if not lost:
        return
    table = Table("ring", "CPU", "lost", "of", title="Lost", title_justify="left", box=None)
    for r in lost:
        table.add_row(r["ring"], str(r["cpu"]), f"{r['lost']:,}", f"{r['tried']:,}")
    console.print(table)


def show_recorded(console: Console, trace: Trace) -> None:
    """One line after a recording, and what was lost."""
    start, stop = trace.span
    counts = _counts(trace.meta["rows"])
    clean = df_clean(trace)
    lost = int(clean["lost"].sum()) if len(clean) else 0
    loss = f"{lost:,} lost" if lost else "nothing lost"
    meta = trace.meta
    console.print(f"recorded {(stop - start) / 1e9:.2f} s in tier {meta['tier']}: {counts or 'nothing'}; {loss}")
    if meta.get("loader_why"):
        console.print(f"loader {shown(meta['loader'].split(',')[0])}: {shown(meta['loader_why'])}")
    show_loss(console, trace)
    for reason in trace.meta.get("not_stock", []):
        console.print(f"[yellow]placement here is not stock:[/yellow] {shown(reason)}")


def show_topology(console: Console, topology: Topology) -> None:
    """Packages, nodes, LLCs, cores and threads as a tree, then each distinct domain chain with all flags."""
    smt = "SMT" if topology.smt_active else "no SMT"
    online = [c for c in topology.cpus if c.online]
    root = Tree(f"{len(online)} CPUs online, {smt}")
    for package in sorted({c.package for c in topology.cpus}):
        branch = root.add(f"package {package}")
        for node in sorted({c.node for c in topology.cpus if c.package == package}):
            distances = topology.distances.get(str(node))
            place = branch.add(f"node {node}" + (f"  distances {distances}" if distances else ""))
            _add_llcs(place, [c for c in topology.cpus if c.package == package and c.node == node])
    console.print(root)
    for cpus, chain in _chains(topology):
        console.print(f"\n[bold]domains of CPU {cpus}[/bold]")
        for domain in chain:
            name, pct = shown(domain.name), domain.imbalance_pct
            console.print(f"  {name or domain.level}: CPUs {_ranges(domain.span)}, imbalance_pct {pct}")
            known = sorted({f for d in topology.domains for f in d.flags} | set(topology.flag_order))
            order = topology.flag_order or known
            marks = (f"[green]+{f}[/green]" if f in domain.flags else f"[dim]-{f}[/dim]" for f in order)
            console.print("    " + " ".join(marks))


def _add_llcs(place: Tree, cpus: list[Any]) -> None:
    for llc in sorted({c.llc for c in cpus}):
        group = [c for c in cpus if c.llc == llc]
        cache = place.add(f"LLC {llc}")
        for core in sorted({c.core for c in group}):
            threads = [f"{c.cpu}" + ("" if c.online else " (offline)") for c in group if c.core == core]
            cache.add(f"core {core}: CPU {', '.join(threads)}")


def _chains(topology: Topology) -> Iterator[tuple[str, list[Any]]]:
    """Domain chains, those that differ only in whose they are shown once."""
    groups: dict[str, tuple[list[int], list[Any]]] = {}
    for cpu in topology.cpus:
        chain = topology.chain(cpu.cpu)
        key = repr([(d.name, d.flags, d.imbalance_pct, d.span) for d in chain])
        groups.setdefault(key, ([], chain))[0].append(cpu.cpu)
    for cpus, chain in groups.values():
        if chain:
            yield _ranges(cpus), chain


def _ranges(cpus: list[int]) -> str:
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def show_validation(console: Console, trace: Trace, found: Validation) -> None:
    """Agreement: overall, per certainty, path and distance, with 95 % bounds; then the worst disagreements."""
    total, exact = found.all, found.certainty["EXACT"]
    name = shown(found.kernel.release)
    policy = f"policy {name}, given with --policy" if found.given else f"policy of {name}"
    console.print(
        f"{_percent(total)} of {total.decisions:,} decisions agree; {_percent(exact)} of the {exact.decisions:,} whose "
        f"inputs suffice ({policy}; {found.clean_share:.2%} of the span is clean)"
    )
    for reason in found.kernel.unseen:
        console.print(f"[yellow]•[/yellow] {shown(reason)}")
    for title, shares in (
        ("by certainty", found.certainty),
        ("by path", found.path),
        ("by distance moved", found.distance),
        ("wake_affine against the kernel's own counters", found.affine),
    ):
        if any(s.decisions for s in shares.values()):
            console.print(_shares(title, shares))
    flips = found.flips
    if found.ends:
        console.print(f"left out: {found.ends:,} wakeups while some probe was not attached yet, or not any more")
    if unknown := found.cpu_unknown + found.forks.cpu_unknown:
        console.print(f"left out: {unknown:,} decisions of which the trace does not say the CPU that the kernel chose")
    console.print(
        f"flips: {flips.matched:,} as record_wakee, {flips.unchanged:,} unchanged, {flips.unexplained:,} unexplained"
    )
    for outcome, count in found.not_placed.items():
        console.print(f"not placed: {count:,} {outcome.lower()}")
    _show_disagreements(console, found)
    forks, exact = found.forks.all, found.forks.certainty["EXACT"]
    if forks.decisions > found.forks.certainty["UNDECIDABLE"].decisions:
        console.print(
            f"forks and execs: {_percent(forks)} of {forks.decisions:,} agree; {_percent(exact)} of the "
            f"{exact.decisions:,} whose inputs suffice"
        )
        console.print(_shares("forks and execs by certainty", found.forks.certainty))
        console.print(_shares("forks and execs by path", found.forks.path))
        _show_disagreements(console, found.forks)
    elif forks.decisions:
        console.print(f"forks and execs: {forks.decisions:,}, recorded without what their placement looks at")


def _show_disagreements(console: Console, found: Agreement) -> None:
    if found.disagreements:
        console.print(f"{len(found.disagreements)} worst disagreements; see one whole: wakescope explain --wakeup N")
        for entry in found.disagreements[:5]:
            model = entry["model"]
            console.print(
                f"  wakeup {entry['wakeup']}: kernel CPU {entry['kernel_cpu']}, model CPU {model['cpu']} "
                f"({model['path'].lower()}, {model['certainty'].lower()})"
            )


def _percent(share: Share) -> str:
    return "-" if share.share is None else f"{share.share:.3%}"


def _shares(title: str, shares: dict[str, Share]) -> Table:
    table = Table("", "decisions", "agree", "95 % bounds", title=title, title_justify="left", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, share in shares.items():
        data = share.to_dict()
        if share.decisions:
            if name.lower() == "undecidable":
                table.add_row(name.lower(), f"{share.decisions:,}", "–", "no CPU to compare")
                continue
            bounds = f"{data['low']:.3%} – {data['high']:.3%}"
            table.add_row(name.lower(), f"{share.decisions:,}", _percent(share), bounds)
    return table


def show_reasons(console: Console, who: str, reasons: list[Reason], verdict: str) -> None:
    """One decision: who wakes whom, then a chain of reasons, each marked measured, derived or unknown."""
    console.print(shown(who))
    table = Table(box=None, show_header=False, pad_edge=False)
    for reason in reasons:
        style = _SOURCES[reason.source.value]
        table.add_row(reason.function, shown(reason.text), f"[{style}]{reason.source.value}[/{style}]")
    console.print(table)
    console.print(f"→ {shown(verdict)}")
