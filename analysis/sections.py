# SPDX-License-Identifier: GPL-2.0-only
"""The sections of a report: which tables each shows, and what it finds odd.

A section's findings are sentences over its own tables. The weight ranks them: from 1 (the trace or the tool is wrong,
or nearly everything is odd) to 0 (a plain fact, said when nothing is odd).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from ..trace import Trace
from . import affine, balance, bounces, fights, flips, graph, latency, loss, numa, placement, runqueue, stacking, wide


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


@dataclass
class View:
    """What a report is asked to look at. load_replay gives the model's replay, a row per row of wakeups, or None."""

    trace: Trace
    task: str | None = None
    load_replay: Callable[[], pd.DataFrame | None] = lambda: None

    @cached_property
    def replay(self) -> pd.DataFrame | None:
        """The replay, waited for when a section first asks for it."""
        return self.load_replay()


def loss_section(view: View) -> Section:
    """Loss per ring and CPU, and the clean share."""
    clean, lost = loss.df_clean(view.trace), loss.df_loss(view.trace)
    unseen = int(clean["unseen"].sum())
    worst = clean.sort_values("clean").iloc[0] if len(clean) else None
    if worst is not None and worst["lost"]:
        text = f"{clean['lost'].sum():,} records were lost; the {worst['ring']} ring is clean for {worst['clean']:.1%}"
        findings = [Finding(0.6 + 0.4 * (1 - float(worst["clean"])), text)]
    else:
        findings = [Finding(0.01, "Nothing was lost: the whole span is clean")]
    if unseen:
        text = f"{unseen:,} switches were not seen though no record was lost: something is hidden from BPF here"
        findings.append(Finding(0.05 + 0.9 * min(1, 100 * unseen / max(1, view.trace.rows("switches"))), text))
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
    paths = placement.df_paths(view.trace, view.replay, view.task)
    waits = (
        latency.df_latency(view.trace, "path", view.replay, view.task) if view.trace.has("switches") else pd.DataFrame()
    )
    pairs = placement.df_pairs(view.trace, view.task)
    share = moves.set_index("distance")["moved_share"]
    total = int(moves["moved"].sum())
    findings = [Finding(0.02, f"{share['cpu']:.1%} of {total:,} decisions stayed on prev_cpu")] if total else []
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
            Table("path_latency", "Wakeup to run by path, us", waits),
            Table("pairs", "Who woke whom", pairs),
        ],
        findings,
    )


def flips_section(view: View) -> Section:
    """Flips per waker and over time, whether the rule explains them, wake_wide() and who wakes whom."""
    check = flips.df_flip_check(view.trace, view.task)
    flippers = flips.df_flippers(view.trace, view.task)
    pairs = wide.df_wide(view.trace, view.task)
    counts, shares = check.set_index("check")["wakeups"], check.set_index("check")["share"]
    findings = []
    if counts["unexplained"]:
        text = (
            f"{counts['unexplained']:,} changes of wakee_flips do not follow record_wakee(): capture or kernel differs"
        )
        findings.append(Finding(1.0, text))
    guessed = view.trace.meta.get("tier") == "tracepoint"  # there the outcome says that placement could have run
    if shares["unchanged"] > (0.05 if guessed else 0.001):
        text = f"{shares['unchanged']:.1%} of wakeups left wakee_flips unchanged where record_wakee() should have run"
        findings.append(Finding(0.3 + 0.5 * float(shares["unchanged"]), text))
    if len(flippers):
        top = flippers.iloc[0]
        findings.append(Finding(0.03, f"The highest wakee_flips is {top['highest']:,}, of {top['task']}"))
    total = max(1, int(pairs["decisions"].sum()))
    if pairs["wide"].sum():
        text = f"wake_wide() says wide in {pairs['wide'].sum() / total:.1%} of placed wakeups"
        findings.append(Finding(0.2 + 0.3 * float(pairs["wide"].sum()) / total, text))
    if pairs["changed"].sum():
        text = (
            f"With the LLC counted in cores wake_wide() would answer otherwise in {pairs['changed'].sum() / total:.1%}"
        )
        findings.append(Finding(0.2 + 0.5 * float(pairs["changed"].sum()) / total, text))
    return Section(
        "flips",
        "Wakee flips",
        [
            Table("check", "Flips by rule against the kernel's", check),
            Table("tasks", "Wakers by highest flips", flippers),
            Table("over_time", "Flips over time", flips.df_flips_over_time(view.trace, task=view.task)),
            Table("wide", "wake_wide() by pair", pairs),
            Table("components", "Who wakes whom, as a graph", graph.df_components(view.trace, view.task)),
        ],
        findings,
    )


def affine_section(view: View) -> Section:
    """wake_affine()'s verdicts, pulls, bounces and stacking."""
    verdicts = affine.df_affine_verdicts(view.trace, view.replay, view.task)
    pulls = affine.df_pulls(view.trace, view.task)
    by_task = bounces.df_bounces(view.trace, "task", view.task)
    stacked = stacking.df_stacking(view.trace, view.task)
    pairs = stacking.df_stacking_pairs(view.trace, view.task)
    share = stacked.set_index("stacking")["share"].reindex(["llc", "machine"], fill_value=0)
    findings = []
    if share["llc"] > 0:
        text = f"{share['llc']:.1%} of decisions went to a busy CPU while an allowed one of the same LLC was idle"
        findings.append(Finding(0.1 + 0.8 * float(share["llc"]), text))
    if pairs["sync_awake"].sum():
        text = f"{pairs['sync_awake'].sum():,} sync wakeups onto the waker's CPU found a waker that did not go to sleep"
        findings.append(Finding(0.1 + 0.5 * float(pairs["sync_awake"].sum() / pairs["decisions"].sum()), text))
    if len(by_task) and by_task["bounces"][0] >= 10:
        top = by_task.iloc[0]
        text = f"{top['task']} bounced {top['bounces']:,} times in {top['decisions']:,} decisions"
        findings.append(Finding(0.4 * float(top["bounce_share"]), text))
    return Section(
        "affine",
        "Affine migrations",
        [
            Table("verdicts", "wake_affine() by verdict, and distance from prev_cpu to the waker", verdicts),
            Table("pulls", "Pulls towards the waker", pulls),
            Table("bounces", "Bounces by task", by_task),
            Table("pair_bounces", "Bounces by pair", bounces.df_bounces(view.trace, "pair", view.task)),
            Table("stacking", "What the chosen CPU was doing, waits in us", stacked),
            Table("stacking_pairs", "Stacking by pair, dearest first, waits in us", pairs),
        ],
        findings,
    )


def latency_section(view: View) -> Section:
    """Waits from wakeup to run by distance and sibling."""
    every = latency.df_latency(view.trace, task=view.task)
    moved = latency.df_latency(view.trace, "moved", task=view.task)
    all_waits, findings = every.iloc[0], []
    if all_waits["waits"]:
        text = f"Wakeup to run: p50 {all_waits['p50']:,.1f} us, p99 {all_waits['p99']:,.1f} us, "
        findings.append(Finding(0.04, text + f"longest {all_waits['max']:,.1f} us"))
    if all_waits["censored"] > 0.001 * all_waits["waits"]:
        text = f"{all_waits['censored']:,.0f} woken tasks had not run when the trace ended"
        findings.append(Finding(0.05 + 0.5 * all_waits["censored"] / all_waits["waits"], text))
    big = moved[moved["waits"] >= 100].sort_values("p50")
    if len(big) > 1:
        low, high = big.iloc[0], big.iloc[-1]
        text = (
            f"Median wakeup to run is {high['p50']:,.1f} us at distance {high['moved']}, "
            f"{low['p50']:,.1f} us at {low['moved']}"
        )
        findings.append(Finding(float(np.clip(0.1 * np.log2(high["p50"] / max(low["p50"], 0.1)), 0, 0.8)), text))
    return Section(
        "latency",
        "Wakeup latency",
        [
            Table("all", "Wakeup to run, us", every),
            Table("by_moved", "Wakeup to run by distance moved, us", moved),
            Table(
                "by_sibling",
                "Wakeup to run by sibling thread, us",
                latency.df_latency(view.trace, "sibling", task=view.task),
            ),
        ],
        findings,
    )


def runqueue_section(view: View) -> Section:
    """Each task's time."""
    times = runqueue.df_runqueue(view.trace, view.task)
    findings = []
    if len(times):
        preempted, running = times["preempt_wait_ms"].sum(), times["running_ms"].sum()
        text = f"Tasks ran {running:,.1f} ms and waited {preempted:,.1f} ms after preemptions"
        findings.append(Finding(0.02 + 0.1 * float(min(1, preempted / max(running, 1))), text))
    return Section("runqueue", "Run queue", [Table("tasks", "Where the time went", times)], findings)


def numa_section(view: View) -> Section:
    """Automatic NUMA balancing, and its fights with wake_affine()."""
    if len({cpu.node for cpu in view.trace.topology.cpus}) < 2:
        return Section("numa", "NUMA balancing", missing="one NUMA node: nothing to balance")
    retries = numa.df_retries(view.trace, view.task)
    fought = fights.df_fights(view.trace, task=view.task)
    findings = []
    cycles = int((~fought["unclean"]).sum())
    if cycles:
        text = f"{cycles:,} times a wakeup pulled a task to another node and balancing took it back within 1 s"
        findings.append(Finding(0.5 + 0.4 * min(1, cycles / 100), text))
    if retries["attempts"].sum():
        text = f"NUMA balancing tried {retries['attempts'].sum():,} times to move a task, and moved or swapped "
        text += f"{(retries['move'] + retries['swap']).sum():,}"
        findings.append(Finding(0.12, text))
    if retries["off_rule"].sum():
        text = f"{retries['off_rule'].sum():,} NUMA retry deadlines do not follow the rule: capture or kernel differs"
        findings.append(Finding(0.95, text))
    return Section(
        "numa",
        "NUMA balancing",
        [
            Table("retries", "Attempts to reach the preferred node", retries),
            Table("events", "Events by node", numa.df_numa_events(view.trace, view.task)),
            Table("searches", "Nodes searched for a place, by task", numa.df_searches(view.trace, view.task)),
            Table("preferred", "Changes of preferred node", numa.df_preferred(view.trace, view.task)),
            Table(
                "fight_sums",
                "Cross-node pulls that balancing undid, by task",
                fights.df_fight_sums(view.trace, task=view.task),
            ),
            Table("fights", "Cross-node pulls that balancing undid", fought),
            Table(
                "delay_retry",
                "What backing off after such pulls would have suppressed",
                fights.df_delay_retry(view.trace, view.replay, view.task),
            ),
            Table("vmstat", "The machine's counters", numa.df_vmstat(view.trace)),
        ],
        findings,
    )


def balance_section(view: View) -> Section:
    """Migrations by mover, and those that undid a wakeup's choice."""
    migrations = balance.df_migrations(view.trace, view.task)
    undone = balance.df_undone_counts(view.trace, task=view.task)
    findings = []
    share = undone["share"][undone["undone"] != "unclean"].sum()
    if share > 0.001:
        text = f"{share:.1%} of decisions were undone by a migration within {balance.WITHIN_MS:g} ms"
        findings.append(Finding(0.1 + 0.8 * float(share), text))
    return Section(
        "balance",
        "Load balancer",
        [
            Table("migrations", "Migrations by mover and distance", migrations),
            Table("undone", "Migrations that undid a wakeup's choice", undone),
        ],
        findings,
    )


SECTIONS: dict[str, Callable[[View], Section]] = {
    "placement": placement_section,
    "flips": flips_section,
    "affine": affine_section,
    "latency": latency_section,
    "runqueue": runqueue_section,
    "numa": numa_section,
    "balance": balance_section,
    "loss": loss_section,
}
REPLAYED = {"placement", "affine", "numa"}  # sections that ask for the replay
