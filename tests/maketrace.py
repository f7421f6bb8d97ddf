# SPDX-License-Identifier: GPL-2.0-only
"""Hand-made traces with known answers: rows as dicts, everything not given filled with something harmless.

Import as `from wakescope.tests.maketrace import make_trace, topology`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from wakescope import schema
from wakescope.meta import FORMAT, write_meta
from wakescope.schema import Context, Outcome, TaskEvent
from wakescope.topology import Cpu, Domain, Group, Topology
from wakescope.trace import Trace, write_table

Row = Mapping[str, Any]

# What a column holds if a row does not say: readings "not there", and for the rest 0.
DEFAULTS: dict[str, Any] = {
    "wake_flags": schema.NEVER,
    "this_h_nr_queued": schema.NEVER,
    "this_h_nr_runnable": schema.NEVER,
    "this_nr_idle_scan": -1,
    "prev_nr_idle_scan": -1,
    "this_has_idle_cores": -1,
    "prev_has_idle_cores": -1,
    "wakee_preferred_nid": -1,
    "affine_attempts": -1,
    "affine_moves": -1,
    "jiffies_exit": schema.NEVER64,
    "this_load_exit": schema.NEVER64,
    "prev_load_exit": schema.NEVER64,
    "this_nr_running_exit": schema.NEVER,
    "prev_nr_running_exit": schema.NEVER,
    "this_nr_idle_scan_exit": -1,
    "prev_nr_idle_scan_exit": -1,
    "this_has_idle_cores_exit": -1,
    "prev_has_idle_cores_exit": -1,
    "preferred_nid": -1,
    "waker_prio": 120,
    "wakee_prio": 120,
    "next_prio": 120,
    "this_capacity": 1024,
    "prev_capacity": 1024,
}


def topology(nodes: int = 1, llcs: int = 1, cores: int = 2, threads: int = 1, affine_nodes: bool = True) -> Topology:
    """A machine: nodes x llcs per node x cores per LLC x threads per core; a core's threads have successive numbers.

    Each CPU's domain chain is built as the kernel would: SMT, MC (the LLC), DIE (the node), NUMA, leaving out levels
    that add no CPU. affine_nodes False clears SD_WAKE_AFFINE on the NUMA level, as a far distance does.
    """
    per_llc, per_node = cores * threads, llcs * cores * threads
    count = nodes * per_node
    cpus = [
        Cpu(c, core=c - c % threads, llc=c - c % per_llc, node=c // per_node, package=c // per_node)
        for c in range(count)
    ]
    levels = [("SMT", threads), ("MC", per_llc), ("DIE", per_node), ("NUMA", count)]
    domains = []
    groups: dict[tuple[str, int], int] = {}
    made: list[Group] = []
    for c in range(count):
        below, level = 1, 0
        for name, size in levels:
            if size == below:
                continue
            flags = ["BALANCE_NEWIDLE", "BALANCE_EXEC", "BALANCE_FORK", "WAKE_AFFINE"]
            if name == "NUMA" and not affine_nodes:
                flags = ["BALANCE_NEWIDLE"]
            flags += {"SMT": ["SHARE_CPUCAPACITY", "SHARE_LLC"], "MC": ["SHARE_LLC"], "NUMA": ["NUMA"]}.get(name, [])
            first = c - c % size
            ring = []
            for i in range(size // below):  # from its own group on, round the domain
                start = first + (c - c % below - first + i * below) % size
                if (name, start) not in groups:
                    groups[name, start] = len(made)
                    made.append(Group(list(range(start, start + below)), below, [], len(made)))
                ring.append(groups[name, start])
            span = list(range(first, first + size))
            own = made[ring[0]].span
            domains.append(Domain(c, level, name, flags, 117, span, size // below, own, [], 1, ring))
            below, level = size, level + 1
    return Topology(cpus, domains, smt_active=threads > 1, groups=made)


def mask(cpus: Iterable[int], words: int = 1) -> list[int]:
    """CPU numbers as 64-bit words."""
    out = [0] * words
    for cpu in cpus:
        out[cpu // 64] |= 1 << cpu % 64
    return out


def task(pid: int, comm: bytes = b"", ts: int = 0, event: int = TaskEvent.SNAPSHOT, start: int | None = None) -> Row:
    """A tasks row; a task's start is its pid unless given."""
    return {"ts": ts, "pid": pid, "start": pid if start is None else start, "comm": comm, "event": event}


def wake(
    ts: int,
    cpu: int,
    waker: int,
    wakee: int,
    prev: int,
    chosen: int,
    outcome: int = Outcome.PLACED,
    context: int = Context.TASK,
    **more: Any,
) -> Row:
    """A wakeups row: tasks by pid (which is their start and tag, too)."""
    return {
        "ts": ts,
        "cpu": cpu,
        "waker_pid": waker,
        "waker_start": waker,
        "wakee_pid": wakee,
        "wakee_start": wakee,
        "wakee_tag": wakee,
        "prev_cpu": prev,
        "chosen_cpu": chosen,
        "outcome": outcome,
        "context": context,
        "jiffies": 1_000_000,
        **more,
    }


def switch(ts: int, cpu: int, prev: int, following: int, on_rq: int = 0, **more: Any) -> Row:
    """A switches row, by pid; prev sleeps unless on_rq."""
    return {"ts": ts, "cpu": cpu, "prev_pid": prev, "next_pid": following, "prev_on_rq": on_rq, **more}


def records(table: str, rows: Iterable[Row], words: int = 1) -> np.ndarray[Any, np.dtype[np.void]]:
    """Rows as the table's structured array. allowed is all CPUs and seq counts each CPU's rows unless given."""
    rows = list(rows)
    out = np.zeros(len(rows), schema.dtype(table, words))
    for name in out.dtype.names or ():
        if name in DEFAULTS:
            out[name] = DEFAULTS[name]
    if table == "wakeups":
        out["allowed"] = np.iinfo(np.uint64).max
    counts: dict[int, int] = {}
    for i, row in enumerate(rows):
        cpu = row.get("cpu", 0)
        out["seq"][i] = counts.get(cpu, 0)
        for name, value in row.items():
            out[name][i] = value
        counts[cpu] = int(out["seq"][i]) + 1
    return out


def make_trace(
    path: Path,
    tables: Mapping[str, Iterable[Row] | np.ndarray[Any, Any]],
    machine: Topology | None = None,
    **meta: Any,
) -> Trace:
    """Write a bundle at path and open it. Tables not named are absent; seq of the event ring's tables is renumbered so
    that they share one count per CPU, as they do in the ring.
    """
    machine = machine or topology()
    path.mkdir(parents=True)
    made = {
        table: rows if isinstance(rows, np.ndarray) else records(table, rows, machine.words)
        for table, rows in tables.items()
    }
    _number_events(made)
    for table, array in made.items():
        write_table(path, table, array)
    (path / "topology.json").write_text(machine.to_json())
    base = {"format": FORMAT, "state": "complete", "kernel": "6.12.0", "tier": "decision", "hz": 250}
    write_meta(path, {**base, **meta})
    return Trace.open(path)


def _number_events(made: dict[str, np.ndarray[Any, Any]]) -> None:
    shared = [made[t] for t in ("migrations", "numa", "tasks", "hotplugs") if t in made]
    counts: dict[int, int] = {}
    order = sorted((int(row["ts"]), i, j) for i, array in enumerate(shared) for j, row in enumerate(array))
    for _, i, j in order:
        cpu = int(shared[i][j]["cpu"])
        shared[i][j]["seq"] = counts.get(cpu, 0)
        counts[cpu] = counts.get(cpu, 0) + 1
