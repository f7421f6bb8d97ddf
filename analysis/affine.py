# SPDX-License-Identifier: GPL-2.0-only
"""wake_affine(): was it asked, what did it say, who pulled whom how near (docs/definitions.md, affine migrations)."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd

from ..schema import Outcome
from ..topology import Topology
from ..trace import Trace
from .distance import NAMES, distance
from .inputs import columns, masks, once
from .tasks import of_selected
from .wakeups import df_wakeups
from .wide import df_verdicts

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Affine(IntEnum):
    """Why wake_affine() was not called, or what it answered."""

    WIDE = 0
    DISALLOWED = 1
    SAME_CPU = 2
    NO_DOMAIN = 3
    GRANTED = 4
    REFUSED = 5
    UNKNOWN = 6


class Source(IntEnum):
    """Where a verdict comes from."""

    RULES = 0  # of select_task_rq_fair(), from measured inputs
    SCHEDSTATS = 1
    LLC = 2  # the LLC chosen
    REPLAY = 3  # the model, where it chose the kernel's CPU
    NONE = 4


def df_affine(trace: Trace, replay: pd.DataFrame | None = None) -> pd.DataFrame:
    """Verdict of each wakeup that reached placement. Needs tables wakeups and tasks.

    replay: the model's, a row per row of wakeups (columns grant, cpu, rule). Columns: row: row of wakeups; verdict:
    Affine; source: Source; start: Distance from prev_cpu to the waker's CPU; end: Distance from the chosen CPU to the
    waker's; pull (bool): the chosen CPU is nearer to the waker; rule (category): which rule of wake_affine() answered,
    where the replay chose the kernel's CPU and does not contradict the verdict, else "unknown".
    """
    found = _without_replay(trace)
    if replay is None:
        nothing = pd.CategoricalDtype(["unknown"])
        return found.assign(rule=pd.Categorical.from_codes(np.zeros(len(found), np.int8), dtype=nothing))
    told = replay[["cpu", "grant", "rule"]].iloc[found["row"].to_numpy()]
    chosen = df_wakeups(trace)["chosen_cpu"].to_numpy()[found["row"]]
    verdict, source = found["verdict"].to_numpy(copy=True), found["source"].to_numpy(copy=True)
    grant = told["grant"].to_numpy()
    agrees = (told["cpu"].to_numpy() == chosen) & (grant >= 0)
    says = np.where(grant == 1, Affine.GRANTED, Affine.REFUSED).astype(np.uint8)
    new = agrees & (verdict == Affine.UNKNOWN)
    verdict[new], source[new] = says[new], Source.REPLAY
    rules = [*told["rule"].cat.categories, "unknown"]
    code = np.where(agrees & (says == verdict), told["rule"].cat.codes, len(rules) - 1)
    rule = pd.Categorical.from_codes(code, dtype=pd.CategoricalDtype(rules))
    return found.assign(verdict=verdict, source=source, rule=rule)


@once
def _without_replay(trace: Trace) -> pd.DataFrame:
    """df_affine() from the trace alone, without rule."""
    row = np.flatnonzero(df_wakeups(trace)["outcome"] == int(Outcome.PLACED))
    rows = columns(trace, "wakeups", "cpu", "prev_cpu", "chosen_cpu", "affine_attempts", "affine_moves").iloc[row]
    cpu, prev, chosen = (rows[c].to_numpy() for c in ("cpu", "prev_cpu", "chosen_cpu"))
    verdict = np.full(len(row), Affine.UNKNOWN, np.uint8)
    source = np.full(len(row), Source.NONE, np.uint8)
    attempts, moves = rows["affine_attempts"].to_numpy(), rows["affine_moves"].to_numpy()
    to_waker, to_prev = _by_llc(trace.topology, cpu, prev, chosen)
    picked = (moves > 0) & counts_only_pulls(*(str(trace.meta.get(key, "")) for key in ("kernel", "kernel_version")))
    for where, value, origin in (  # attempts is 0 if schedstats say it was not called, -1 without them
        (to_waker & (attempts != 0), Affine.GRANTED, Source.LLC),
        (to_prev & (attempts != 0), Affine.REFUSED, Source.LLC),
        ((attempts > 0) & picked, Affine.GRANTED, Source.SCHEDSTATS),
        ((attempts > 0) & (moves == 0), Affine.REFUSED, Source.SCHEDSTATS),
    ):
        verdict[where], source[where] = value, origin
    words = masks(trace)["allowed"][row, cpu // 64]
    allowed = words >> (cpu % 64).astype(np.uint64) & np.uint64(1)
    not_called = [
        (Affine.NO_DOMAIN, ~_affine_domains(trace.topology)[cpu, prev]),
        (Affine.SAME_CPU, cpu == prev),
        (Affine.DISALLOWED, allowed == 0),
        (Affine.WIDE, df_verdicts(trace)["wide"].to_numpy()),
    ]
    for value, where in not_called:  # the last that applies is the first the kernel tests
        not_seen = where & (attempts <= 0)
        verdict[not_seen], source[not_seen] = value, Source.RULES
    start, end = distance(trace.topology, prev, cpu), distance(trace.topology, chosen, cpu)
    return pd.DataFrame(
        {"row": row, "verdict": verdict, "source": source, "start": start, "end": end, "pull": end < start}
    )


def df_affine_verdicts(trace: Trace, replay: pd.DataFrame | None = None, task: str | None = None) -> pd.DataFrame:
    """Placed wakeups of selected wakees by verdict. Needs tables wakeups and tasks.

    replay: as in df_affine. Columns: verdict, source, rule (names); wakeups; share; then one per distance: wakeups
    whose prev_cpu is that far from the waker's CPU.
    """
    rows = _of(trace, df_affine(trace, replay), task)
    rules = rows["rule"].cat.categories
    key = (rows["verdict"].astype(np.int64) * len(Source) + rows["source"]) * len(rules) + rows["rule"].cat.codes
    counts = np.bincount(
        key * len(NAMES) + rows["start"], minlength=len(Affine) * len(Source) * len(rules) * len(NAMES)
    )
    counts = counts.reshape(-1, len(NAMES))
    present = np.flatnonzero(counts.sum(axis=1))
    table = pd.DataFrame(
        {
            "verdict": np.array([a.name.lower() for a in Affine], object)[present // len(rules) // len(Source)],
            "source": np.array([s.name.lower() for s in Source], object)[present // len(rules) % len(Source)],
            "rule": np.array(rules, object)[present % len(rules)],
            "wakeups": counts[present].sum(axis=1),
        }
    )
    table["share"] = table["wakeups"] / max(1, len(rows))
    table[NAMES] = counts[present]
    return table


def df_pulls(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Pulls towards the waker by the distance given up. Needs tables wakeups and tasks.

    Columns: start: distance from prev_cpu to the waker; wakeups: all placed that began that far; pulls; pull_share (of
    them); then one per distance: pulls that ended that far from the waker.
    """
    rows = _of(trace, _without_replay(trace), task)
    pulls = rows[rows["pull"]]
    table = pd.DataFrame({"start": NAMES, "wakeups": np.bincount(rows["start"], minlength=len(NAMES))})
    table["pulls"] = np.bincount(pulls["start"], minlength=len(NAMES))
    table["pull_share"] = table["pulls"] / np.maximum(table["wakeups"], 1)
    ends = np.bincount(pulls["start"] * len(NAMES) + pulls["end"], minlength=len(NAMES) ** 2)
    table[NAMES] = ends.reshape(len(NAMES), len(NAMES))
    return table


def counts_only_pulls(kernel: str, version: str = "") -> bool:
    """Whether nr_wakeups_affine is counted only if wake_affine() picked the waker's CPU, by `uname -r` and `uname -v`.

    So in the trees read from 6.6.9, 5.15.135 and 6.1.176 on; 5.15.0, 6.1.4 and everything from 4.16 to 5.10.262 count a
    pick of prev_cpu too. A release between those read is taken for one that does. The `uname -r` of
    Debian and Ubuntu ends in .0, and version names the stable release.
    """
    named = re.search(r"(?:Debian|Ubuntu \S+) (\d+\.\d+\.\d+)", version)
    numbers = [int(part) for part in re.findall(r"\d+", named[1] if named else kernel.split("-")[0])[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    since = {(5, 15): 135, (6, 1): 176}
    return (major, minor) >= (6, 6) or patch >= since.get((major, minor), 1 << 30)


def _of(trace: Trace, rows: pd.DataFrame, task: str | None) -> pd.DataFrame:
    return of_selected(trace, rows, df_wakeups(trace)["wakee"].to_numpy()[rows["row"]], task)


def _by_llc(topology: Topology, cpu: Any, prev: Any, chosen: Any) -> tuple[Bools, Bools]:
    """Where the LLC chosen shows a grant and a refusal: select_idle_sibling() stays in the LLC of its target."""
    llc = np.append(topology.by_cpu("llc"), -1)
    this, before, after = llc[cpu], llc[prev], llc[chosen]
    told = (this != before) & (after >= 0)
    return told & (after == this), told & (after == before)


def _affine_domains(topology: Topology) -> Bools:
    """(nr_cpus + 1, nr_cpus + 1): whether a domain of the first CPU has SD_WAKE_AFFINE and contains the second.

    True throughout for a CPU whose chain was not read, and in the last row and column, which -1 reaches: that there is
    no such domain is then not known.
    """
    found = np.zeros((topology.nr_cpus + 1,) * 2, bool)
    found[-1, :] = found[:, -1] = True
    found[[cpu for cpu in range(topology.nr_cpus) if not topology.chain(cpu)]] = True
    for domain in topology.domains:
        if "WAKE_AFFINE" in domain.flags:
            found[domain.cpu, domain.span] = True
    return found
