# SPDX-License-Identifier: GPL-2.0-only
"""Whether the model asks what the kernel asked, in the same order: the deep tier's test of a decision."""

from __future__ import annotations

import numpy as np

from ..schema import Consulted
from ..topology import Topology
from ..trace import Trace
from .compiled import compiled
from .flips import overlaps
from .loads import NONE, Found, Loads, find_loads
from .policy import Policy
from .replay import Certainty
from .select import select_task_rq_fair
from .topo import Array, Machine, machine
from .wakeup import Wakeup, as_ints, fill, scratch

# What a program of the deep tier records. idle_cpu is not compared: available_idle_cpu may or may not call it.
RECORDED = {
    "available_idle": Consulted.AVAILABLE_IDLE,
    "share_cache": Consulted.SHARE_CACHE,
    "task_h_load": Consulted.H_LOAD,
}


class Calls:
    """The calls a trace of the deep tier holds, by decision."""

    def __init__(self, trace: Trace) -> None:
        self.compared = np.zeros(128, np.bool_)
        self.compared[[kind for program, kind in RECORDED.items() if program in trace.meta.get("probes", [])]] = True
        calls = trace.array("consults")
        calls = calls[self.compared[calls["kind"]]]
        key = _key(calls["cpu"], calls["wakeup_seq"])
        order = np.lexsort((calls["seq"], key))
        self.key = key[order]
        self.asked = np.stack([calls[name][order].astype(np.int64) for name in ("kind", "asked_cpu", "asked_cpu2")], 1)
        self.lost = list(trace.loss("consults")[["start", "end"]].itertuples(index=False, name=None))


def same_calls(
    wakeups: Array, results: Array, calls: Calls, topology: Topology, policy: Policy, hz: int, loads: Loads = NONE
) -> Array:
    """Whether the kernel made the calls the model makes, in its order and with its arguments: int8, (n,).

    wakeups with their replayed results. -1 for decisions that are not exact or may have lost calls.
    """
    verdicts = np.full(len(wakeups), -1, np.int8)
    whole = ~overlaps(wakeups["ts"], wakeups["ts_exit"], calls.lost)
    exact = np.flatnonzero((results["certainty"] == Certainty.EXACT) & whole)
    own = _key(wakeups["cpu"][exact], wakeups["seq"][exact])
    first, last = np.searchsorted(calls.key, own, "left"), np.searchsorted(calls.key, own, "right")
    m, ints, w = machine(topology), as_ints(policy), scratch(topology)
    found = loads.find(wakeups)
    _compare(wakeups, exact, found, calls.asked, first, last, calls.compared, m, ints, hz, w, verdicts)
    return verdicts


def _key(cpu: Array, seq: Array) -> Array:
    return cpu.astype(np.int64) << 32 | seq.astype(np.int64)


@compiled
def _compare(
    wakeups: Array,
    rows: Array,
    found: Found,
    asked: Array,
    first: Array,
    last: Array,
    compared: Array,
    machine: Machine,
    policy: Policy,
    hz: int,
    w: Wakeup,
    verdicts: Array,
) -> None:
    for i in range(len(rows)):
        row = rows[i]
        fill(w, wakeups[row], policy, machine)
        find_loads(w, found, row)
        w.asked = 0
        w.answers = 0
        w.calls = 0
        select_task_rq_fair(policy, machine, w, hz)
        at = first[i]
        equal = True
        for call in range(w.calls):
            if not compared[w.trail[call, 0]]:
                continue
            if at >= last[i] or not _same(asked[at], w.trail[call]):
                equal = False
                break
            at += 1
        verdicts[row] = equal and at == last[i]


@compiled
def _same(kernel: Array, model: Array) -> bool:
    return bool(kernel[0] == model[0] and kernel[1] == model[1] and kernel[2] == model[2])
