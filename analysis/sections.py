# SPDX-License-Identifier: GPL-2.0-only
"""The sections of a report: which tables each shows, and what it finds odd.

A section's findings are sentences over its own tables. The weight ranks them: from 1 (the trace or the tool is wrong,
or nearly everything is odd) to 0 (a plain fact, said when nothing is odd).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ..trace import Trace
from . import flips, latency, loss, placement
from .placement import Paths


@dataclass
class Table:
    """One table: name (its key in JSON), title, rows."""

    name: str
    title: str
    data: pd.DataFrame


@dataclass
class Finding:
    """One sentence and how odd it is, 0 to 1."""

    weight: float
    text: str


@dataclass
class Section:
    """One subject. missing says why it is empty, if it is."""

    name: str
    title: str
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    missing: str = ""


@dataclass(frozen=True)
class View:
    """What a report is asked to look at: paths per row of wakeups (or None), and a task filter (or None)."""

    trace: Trace
    task: str | None = None
    paths: Paths | None = None


def loss_section(view: View) -> Section:
    """Loss per ring and CPU, and the clean share."""
    clean, lost = loss.df_clean(view.trace), loss.df_loss(view.trace)
    worst = clean.sort_values("clean").iloc[0] if len(clean) else None
    if worst is not None and worst["lost"]:
        text = f"{clean['lost'].sum():,} records were lost; the {worst['ring']} ring is clean for {worst['clean']:.1%}"
        findings = [Finding(0.6 + 0.4 * (1 - float(worst["clean"])), text)]
    else:
        findings = [Finding(0.01, "Nothing was lost: the whole span is clean")]
    return Section(
        "loss",
        "Loss",
        [Table("clean", "Clean share of the span", clean), Table("per_cpu", "Loss per ring and CPU", lost)],
        findings,
    )


def placement_section(view: View) -> Section:
    """Outcomes, distances, paths and pairs."""
    outcomes = placement.df_outcomes(view.trace, view.task)
    moves = placement.df_moves(view.trace, view.task)
    paths = placement.df_paths(view.trace, view.paths, view.task)
    pairs = placement.df_pairs(view.trace, view.task)
    share = moves.set_index("distance")["moved_share"]
    total = int(moves["moved"].sum())
    findings = [Finding(0.02, f"{share['cpu']:.1%} of {total:,} decisions stayed on prev_cpu")]
    if share["cross"] > 0:
        text = f"{share['cross']:.1%} of {total:,} decisions moved the task to another node"
        findings.append(Finding(0.1 + 0.8 * float(share["cross"]), text))
    if len(pairs) and pairs["share"][0] > 0.5 and len(pairs) > 2:
        top = pairs.iloc[0]
        findings.append(Finding(0.15, f"{top['share']:.0%} of decisions are {top['waker']} waking {top['wakee']}"))
    return Section(
        "placement",
        "Placement",
        [
            Table("outcomes", "Wakeups by outcome", outcomes),
            Table("moves", "Decisions by distance", moves),
            Table("paths", "Decisions by path and distance moved", paths),
            Table("pairs", "Who woke whom", pairs),
        ],
        findings,
    )


def flips_section(view: View) -> Section:
    """Flips per waker and over time, and whether the rule explains them."""
    check = flips.df_flip_check(view.trace, view.task)
    flippers = flips.df_flippers(view.trace, view.task)
    over_time = flips.df_flips_over_time(view.trace, task=view.task)
    counts, shares = check.set_index("check")["wakeups"], check.set_index("check")["share"]
    findings = []
    if counts["unexplained"]:
        text = (
            f"{counts['unexplained']:,} changes of wakee_flips do not follow record_wakee(): capture or kernel differs"
        )
        findings.append(Finding(1.0, text))
    if shares["unchanged"] > 0.001:
        text = f"{shares['unchanged']:.1%} of wakeups left wakee_flips unchanged where record_wakee() should have run"
        findings.append(Finding(0.3 + 0.5 * float(shares["unchanged"]), text))
    if len(flippers):
        top = flippers.iloc[0]
        findings.append(Finding(0.03, f"The highest wakee_flips is {top['highest']:,}, of {top['task']}"))
    return Section(
        "flips",
        "Wakee flips",
        [
            Table("check", "Flips by rule against the kernel's", check),
            Table("tasks", "Wakers by highest flips", flippers),
            Table("over_time", "Flips over time", over_time),
        ],
        findings,
    )


def latency_section(view: View) -> Section:
    """Waits from wakeup to run by distance, sibling and path."""
    tables = [Table("all", "Wakeup to run, us", latency.df_latency(view.trace, task=view.task))]
    for by, title in (("moved", "by distance moved"), ("sibling", "by sibling thread"), ("path", "by path")):
        data = latency.df_latency(view.trace, by, view.paths, view.task)
        tables.append(Table(f"by_{by}", f"Wakeup to run {title}, us", data))
    every, moved = tables[0].data.iloc[0], tables[1].data
    findings = []
    if every["waits"]:
        text = f"Wakeup to run: p50 {every['p50']:.1f} us, p99 {every['p99']:.1f} us, longest {every['max']:,.1f} us"
        findings.append(Finding(0.04, text))
    if every["censored"] > 0.001 * every["waits"]:
        share = every["censored"] / every["waits"]
        findings.append(
            Finding(0.05 + 0.5 * share, f"{every['censored']:,.0f} woken tasks had not run when the trace ended")
        )
    big = moved[moved["waits"] >= 100]
    if len(big) > 1:
        ordered = big.sort_values("p50")
        low, high = ordered.iloc[0], ordered.iloc[-1]
        text = (
            f"Median wakeup to run is {high['p50']:.1f} us at distance {high['moved']}, "
            f"{low['p50']:.1f} us at {low['moved']}"
        )
        findings.append(Finding(float(np.clip(0.1 * np.log2(high["p50"] / max(low["p50"], 0.1)), 0, 0.8)), text))
    return Section("latency", "Wakeup latency", tables, findings)


SECTIONS: dict[str, Callable[[View], Section]] = {
    "placement": placement_section,
    "flips": flips_section,
    "latency": latency_section,
    "loss": loss_section,
}
