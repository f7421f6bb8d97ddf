# SPDX-License-Identifier: GPL-2.0-only
"""What changed and changed back while the kernel decided, which no reading at entry and exit can show.

Other records of the trace show it: switches, other decisions and migrations. Marked are only decisions whose words
were read from the runqueues (has_masks 1); elsewhere ts_exit is not when the decision ended.
"""

from __future__ import annotations

import numpy as np

from ..topology import Topology
from .compiled import compiled
from .topo import Array, machine

FLICKERED = -2  # what no reading gives, in a field at exit: it may have been something else meanwhile


def mark_flickers(wakeups: Array, switches: Array, migrations: Array | None, topology: Topology) -> None:
    """Let readings at exit differ from those at entry where something changed while the kernel decided.

    wakeups: rows of schema.WAKEUPS, changed in place. switches: rows with ts, cpu, prev_pid and next_pid; migrations:
    rows with ts, orig_cpu and dest_cpu, or None; both in time order. Marked are:

    * idle: a CPU began or ceased to idle;
    * has_idle_cores, by LLC: it was 0 and a CPU of the LLC went idle (__update_idle_core() sets it), or another
      decision read something else (select_idle_cpu() clears it when a search for a core fails);
    * nr_running of this_cpu: another decision chose it, or a task was moved from or to it.
    """
    machine_cpus = machine(topology).cpus
    llc = np.ascontiguousarray(machine_cpus["llc_id"])
    idle = switches[(switches["prev_pid"] == 0) | (switches["next_pid"] == 0)]
    at, cpus = np.ascontiguousarray(idle["ts"]), np.ascontiguousarray(idle["cpu"])
    _mark_idle(wakeups, at, cpus)
    rests = idle["next_pid"] == 0
    _mark_idle_cores(wakeups, llc, at[rests], llc[cpus[rests].astype(np.int64)], *_idle_cores(wakeups, llc))
    _mark_nr_running(wakeups, *_arrivals(wakeups, migrations))


def _idle_cores(wakeups: Array, llc: Array) -> tuple[Array, Array, Array, Array]:
    """Every reading of has_idle_cores in time order: when, of which LLC, what, and the row it is from."""
    rows = np.arange(len(wakeups))
    parts = [
        (wakeups[when], llc[wakeups[cpu].astype(np.int64)], wakeups[f"{name}_has_idle_cores{suffix}"], rows)
        for cpu, name in (("cpu", "this"), ("prev_cpu", "prev"))
        for when, suffix in (("ts", ""), ("ts_exit", "_exit"))
    ]
    ts, of, value, row = (np.concatenate(column) for column in zip(*parts, strict=True))
    known = value >= 0
    order = np.argsort(ts[known], kind="stable")
    return ts[known][order], of[known][order], value[known][order], row[known][order]


def _arrivals(wakeups: Array, migrations: Array | None) -> tuple[Array, Array, Array]:
    """When a runqueue gained or lost a task, as far as is recorded: when, its CPU, the row that placed it or -1."""
    ts, cpus = [wakeups["ts_exit"]], [wakeups["chosen_cpu"].astype(np.int64)]
    rows = [np.arange(len(wakeups))]
    if migrations is not None:
        for end in ("orig_cpu", "dest_cpu"):
            ts.append(migrations["ts"])
            cpus.append(migrations[end].astype(np.int64))
            rows.append(np.full(len(migrations), -1))
    when = np.concatenate(ts)
    order = np.argsort(when, kind="stable")
    return when[order], np.concatenate(cpus)[order], np.concatenate(rows)[order]


@compiled
def _mark_idle(wakeups: Array, when: Array, cpus: Array) -> None:
    for i in range(len(wakeups)):
        row = wakeups[i]
        if row["has_masks"] != 1:
            continue
        at = np.searchsorted(when, row["ts"])
        while at < len(when) and when[at] <= row["ts_exit"]:
            word, bit = cpus[at] >> 6, np.uint64(1) << np.uint64(cpus[at] & 63)
            row["idle_exit"][word] = (row["idle_exit"][word] & ~bit) | (~row["idle"][word] & bit)
            at += 1


@compiled
def _mark_idle_cores(
    wakeups: Array, llc: Array, rest: Array, rest_llc: Array, when: Array, of: Array, value: Array, rows: Array
) -> None:
    for i in range(len(wakeups)):
        row = wakeups[i]
        if row["has_masks"] != 1:
            continue
        this, prev = llc[row["cpu"]], llc[row["prev_cpu"]]
        this_cores, prev_cores = row["this_has_idle_cores"], row["prev_has_idle_cores"]
        at = np.searchsorted(rest, row["ts"])
        while at < len(rest) and rest[at] <= row["ts_exit"]:
            if rest_llc[at] == this and this_cores == 0:
                row["this_has_idle_cores_exit"] = FLICKERED
            if rest_llc[at] == prev and prev_cores == 0:
                row["prev_has_idle_cores_exit"] = FLICKERED
            at += 1
        at = np.searchsorted(when, row["ts"])
        while at < len(when) and when[at] <= row["ts_exit"]:
            if rows[at] != i and of[at] == this and this_cores >= 0 and value[at] != this_cores:
                row["this_has_idle_cores_exit"] = FLICKERED
            if rows[at] != i and of[at] == prev and prev_cores >= 0 and value[at] != prev_cores:
                row["prev_has_idle_cores_exit"] = FLICKERED
            at += 1


@compiled
def _mark_nr_running(wakeups: Array, when: Array, cpus: Array, rows: Array) -> None:
    for i in range(len(wakeups)):
        row = wakeups[i]
        if row["has_masks"] != 1:
            continue
        at = np.searchsorted(when, row["ts"])
        while at < len(when) and when[at] <= row["ts_exit"]:
            if rows[at] != i and cpus[at] == row["cpu"]:
                row["this_nr_running_exit"] = row["this_nr_running"] + 1
            at += 1
