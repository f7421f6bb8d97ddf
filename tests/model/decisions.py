# SPDX-License-Identifier: GPL-2.0-only
"""Decisions for the model's tests: one with everything known, changed as a test likes, or many random ones.

The machine of most tests has two nodes, each one LLC of two cores of two threads: CPUs 0-3 and 4-7, siblings 0 and 1,
2 and 3, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from wakescope.model.loads import Loads
from wakescope.model.policy import Policy
from wakescope.model.replay import replay
from wakescope.schema import NEVER, NEVER64, Context, Load, Outcome, Running, dtype
from wakescope.tests.maketrace import mask, records, topology, wake
from wakescope.topology import Topology

BOX = topology(nodes=2, cores=2, threads=2)
HZ = 250
SYNC = 0x18  # WF_TTWU | WF_SYNC
PLAIN = 0x08  # WF_TTWU

# Waker 1 on CPU 0 wakes 2, last on CPU 2: the same LLC, another core. Nobody flips, all CPUs are busy, the scan may go
# all the way, loads are even.
KNOWN: dict[str, Any] = {
    "waker_last_wakee": 2,
    "waker_decay_ts": 1_000_000,
    "llc_size": 4,
    "wake_flags": PLAIN,
    "this_load": 2000,
    "prev_load": 2000,
    "wakee_h_load": 500,
    "waker_h_load": 500,
    "this_nr_running": 2,
    "this_h_nr_queued": 2,
    "this_h_nr_runnable": 2,
    "prev_nr_running": 2,
    "this_nr_idle_scan": 4,
    "prev_nr_idle_scan": 4,
    "this_has_idle_cores": 0,
    "prev_has_idle_cores": 0,
    "has_masks": 1,
    "waker_nr_allowed": 8,
    "wakee_nr_allowed": 8,
    "this_avg_idle": 10_000_000,
    "this_avg_scan_cost": 1000,
}


def decision(cpu: int = 0, prev: int = 2, chosen: int = -1, words: int = 1, **more: Any) -> Any:
    """One wakeups row, shape (1,). idle, sched_idle and allowed are given as CPU numbers; idle_exit is idle."""
    row = KNOWN | {"recent_used_cpu": prev} | more
    row.setdefault("sched_idle_exit", row.get("sched_idle", []))
    row.setdefault("idle_exit", row.get("idle", []))
    for name in ("idle", "idle_exit", "sched_idle", "sched_idle_exit", "allowed"):
        if name in row:
            row[name] = mask(row[name], words)
    return records("wakeups", [wake(1, cpu, 1, 2, prev, chosen, **row)], words)


def decide(policy: Policy, machine: Topology = BOX, **what: Any) -> Any:
    """The RESULT row for decision(**what)."""
    return replay(decision(words=machine.words, **what), machine, policy, HZ)[0]


def random_decisions(seed: int, machine: Topology, n: int, unknown: float = 0.0) -> Any:
    """n random wakeups rows; each fact is unknown with the given probability."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, dtype("wakeups", machine.words))
    cpus = machine.nr_cpus
    for name in ("cpu", "prev_cpu", "recent_used_cpu", "chosen_cpu"):
        rows[name] = rng.integers(0, cpus, n)
    rows["wake_flags"] = rng.choice([PLAIN, SYNC, PLAIN | 0x40], n, p=[0.45, 0.45, 0.1])
    rows["context"] = rng.integers(0, 3, n)
    rows["waker_flags"] = rng.choice([0, 0x4, 0x200000], n, p=[0.6, 0.1, 0.3])
    rows["waker_nr_allowed"] = rng.integers(1, 3, n)
    rows["wakee_policy"] = rng.choice([0, 5], n)
    rows["waker_flips"], rows["wakee_flips"] = rng.integers(0, 60, n), rng.integers(0, 20, n)
    rows["waker_last_wakee"], rows["wakee_tag"] = rng.integers(1, 4, n), rng.integers(1, 4, n)
    rows["jiffies"], rows["waker_decay_ts"] = 1_000_000, rng.integers(999_600, 1_000_001, n)
    rows["llc_size"] = 4
    for name in ("this_load", "prev_load", "wakee_h_load", "waker_h_load"):
        rows[name] = rng.integers(0, 3000, n)
    rows["this_capacity"], rows["prev_capacity"] = rng.integers(800, 1025, n), rng.integers(800, 1025, n)
    rows["this_nr_running"] = rows["this_h_nr_queued"] = rng.integers(0, 4, n)
    rows["this_h_nr_runnable"] = np.maximum(0, rows["this_nr_running"].astype(int) - rng.integers(0, 2, n))
    for name in ("this_nr_idle_scan", "prev_nr_idle_scan"):
        rows[name] = rng.integers(0, 6, n)
    for name in ("this_has_idle_cores", "prev_has_idle_cores"):
        rows[name] = rng.integers(0, 2, n)
    rows["has_masks"] = 1
    rows["this_avg_idle"], rows["this_avg_scan_cost"] = rng.integers(0, 10**6, n), rng.integers(0, 3000, n)
    for name, density in (("idle", 0.2), ("sched_idle", 0.1), ("allowed", 0.8)):
        rows[name] = _random_masks(rng, n, cpus, machine.words, density)
    rows["sched_idle"] &= ~rows["idle"]
    rows["idle_exit"], rows["sched_idle_exit"] = rows["idle"], rows["sched_idle"]
    rows["jiffies_exit"] = rows["this_load_exit"] = rows["prev_load_exit"] = NEVER64
    rows["this_nr_running_exit"] = rows["prev_nr_running_exit"] = NEVER
    for side in ("this", "prev"):
        rows[f"{side}_nr_idle_scan_exit"] = rows[f"{side}_has_idle_cores_exit"] = -1
    _forget(rng, rows, unknown)
    return rows


def _random_masks(rng: np.random.Generator, n: int, cpus: int, words: int, density: float) -> Any:
    bits = np.zeros((n, words * 64), np.uint8)
    bits[:, :cpus] = rng.random((n, cpus)) < density
    return np.packbits(bits, axis=1, bitorder="little").view("<u8")


def _forget(rng: np.random.Generator, rows: Any, share: float) -> None:
    for names, value in (
        ("wake_flags waker_flags waker_flips this_capacity this_nr_running this_h_nr_queued llc_size", NEVER),
        ("this_load prev_load waker_h_load this_avg_idle", NEVER64),
        ("this_nr_idle_scan prev_nr_idle_scan this_has_idle_cores prev_has_idle_cores load_depth", -1),
        ("context", Context.UNKNOWN),
        ("has_masks", 0),
    ):
        for name in names.split():
            rows[name][rng.random(len(rows)) < share] = value


def cpu_loads(machine: Topology, cpus: dict[int, dict[str, Any]], kind: int = Load.ENTRY) -> list[dict[str, Any]]:
    """Rows of the loads table for wakeup 0 of CPU 0: each CPU idle, with all of its capacity, or as cpus says."""
    rows = []
    for cpu in range(machine.nr_cpus):
        capacity = [1024 * machine.groups[sd.ring[0]].weight for sd in machine.chain(cpu)]
        idle = {"curr": Running.IDLE, "idle_stamp": 1000 + cpu, "exit_latency": NEVER}
        row = {"ts": 1, "cpu": 0, "seq": cpu, "asked_cpu": cpu, "kind": kind, **idle, **cpus.get(cpu, {})}
        rows.append({"capacity": capacity + [0] * (8 - len(capacity)), **row})
    return rows


def busy(load: int = 1024, tasks: int = 1, **more: Any) -> dict[str, Any]:
    """What makes a CPU of cpu_loads() busy: its tasks have run for long."""
    used = min(1024, load)
    always = {"curr": Running.OTHER, "idle_stamp": 0, "nr_running": tasks, "load": load}
    return always | {"util": used, "runnable": load} | more


def place(
    policy: Policy,
    cpus: dict[int, dict[str, Any]],
    machine: Topology = BOX,
    at_exit: dict[int, dict[str, Any]] | None = None,
    outcome: int = Outcome.FORK,
    **what: Any,
) -> Any:
    """The RESULT row for a fork (or exec) on CPU 0 that found the CPUs so; at_exit: those that had changed then."""
    rows = cpu_loads(machine, cpus)
    if at_exit:
        rows += [row for row in cpu_loads(machine, at_exit, Load.EXIT) if row["asked_cpu"] in at_exit]
    loads = Loads(records("loads", rows), [])
    prev = what.pop("prev", 0)
    made = decision(prev=prev, words=machine.words, **{"outcome": outcome, "wakee_cpu": prev, **what})
    return replay(made, machine, policy, HZ, loads)[0]
