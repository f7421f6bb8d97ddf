# SPDX-License-Identifier: GPL-2.0-only
"""Which CPUs were idle when a wakeup looked for one, rebuilt from switches (docs/definitions.md, idle)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numba
import numpy as np

from ..schema import Outcome
from ..topology import Topology
from ..trace import Trace
from .inputs import columns, loss_windows, masks, once, switches

Words = np.ndarray[Any, np.dtype[np.uint64]]

# Outcomes that put a task on a runqueue; SELF, QUEUED and EXEC find it there.
BEGINS_WAIT = (
    Outcome.PLACED,
    Outcome.FORK,
    Outcome.DELAYED,
    Outcome.PINNED,
    Outcome.MIGRATION_DISABLED,
    Outcome.NOT_FAIR,
    Outcome.WAKELIST,
)


MASKS_ALL = 2  # has_masks: kept from switches, and so of every CPU; 1 covers the LLCs of this_cpu and prev_cpu


class Sibling(IntEnum):
    """What the other threads of a CPU's core were doing."""

    NONE = 0
    IDLE = 1
    BUSY = 2
    UNKNOWN = 3


def mask_words(cpus: np.ndarray[Any, np.dtype[np.bool_]]) -> Words:
    """Rows of booleans per CPU, shape (…, nr_cpus), as 64-bit words in ascending CPU order, shape (…, words)."""
    n = cpus.shape[-1]
    padded = np.zeros((*cpus.shape[:-1], (n + 63) // 64 * 64), bool)
    padded[..., :n] = cpus
    words: Words = np.packbits(padded, axis=-1, bitorder="little").view("<u8")
    return words


def llc_words(topology: Topology) -> Words:
    """CPUs of each CPU's LLC, uint64 (nr_cpus + 1, words); none in the last row, which -1 reaches."""
    llc = np.append(topology.by_cpu("llc"), -1)
    return mask_words((llc[:, None] == llc[:-1]) & (llc[:, None] >= 0))


@once
def idle_words(trace: Trace) -> tuple[Words, Words]:
    """CPUs idle at each wakeup and CPUs of which that is known: uint64 (rows of wakeups, topology.words) each.

    Needs tables wakeups and switches. Within what the record's own idle words cover they are measured; elsewhere
    rebuilt: the idle task runs, no woken task is on its way there, and the CPU is online; unknown in its CPU's loss
    windows.
    """
    trace.require("wakeups", "switches")
    names = ("cpu", "prev_cpu", "chosen_cpu", "wakee_pid", "outcome", "has_masks")
    wakeups, switched = columns(trace, "wakeups", *names), switches(trace)
    known = np.bincount(switched["cpu"], minlength=trace.topology.nr_cpus)[: trace.topology.nr_cpus] > 0
    lost = loss_windows(trace)["switch"][["cpu", "start", "end"]].sort_values("end").to_numpy(np.int64)
    rebuilt: Words = _idle_at(
        switched["ts"].to_numpy(np.int64),
        switched["cpu"].to_numpy(),
        switched["next_pid"].to_numpy(),
        _idle_at_first(trace),
        wakeups["ts"].to_numpy(np.int64),
        wakeups["wakee_pid"].to_numpy(),
        wakeups["chosen_cpu"].to_numpy(),
        wakeups["outcome"].isin([int(o) for o in BEGINS_WAIT]).to_numpy(),
        lost[:, 2],
        lost[:, 0],
        1 + int(max(t.to_numpy().max(initial=0) for t in (switched["next_pid"], wakeups["wakee_pid"]))),
    )
    if trace.has("hotplugs"):
        _clear_offline(rebuilt, trace, wakeups["ts"].to_numpy(np.int64))
    llc, has = llc_words(trace.topology), wakeups["has_masks"].to_numpy()
    covered = llc[wakeups["cpu"]] | llc[wakeups["prev_cpu"]]
    covered[has == MASKS_ALL] = mask_words(np.ones(trace.topology.nr_cpus, bool))
    covered[has == 0] = 0
    idle: Words = np.bitwise_or(rebuilt & ~covered, masks(trace)["idle"] & covered)
    seen: Words = np.bitwise_or(covered, mask_words(known))
    ts = wakeups["ts"].to_numpy(np.int64)
    for cpu, start, end in lost.tolist():
        blind = slice(*np.searchsorted(ts, (start, end), side="right"))
        seen[blind, cpu // 64] &= covered[blind, cpu // 64] | ~np.uint64(1 << cpu % 64)
    return idle, seen


@once
def sibling_states(trace: Trace) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Sibling of the chosen CPU at each wakeup, uint8 per row of wakeups. Needs tables wakeups and switches."""
    chosen = columns(trace, "wakeups", "chosen_cpu")["chosen_cpu"].to_numpy()
    core = trace.topology.by_cpu("core")
    others = mask_words((core[:, None] == core) & ~np.eye(len(core), dtype=bool) & (core >= 0))
    if not others.any():
        return np.where(chosen < 0, Sibling.UNKNOWN, Sibling.NONE).astype(np.uint8)
    siblings = others[chosen]
    idle, known = idle_words(trace)
    busy = (siblings & known & ~idle).any(axis=1)
    states = np.where(busy, Sibling.BUSY, np.where((siblings & ~known).any(axis=1), Sibling.UNKNOWN, Sibling.IDLE))
    states[~siblings.any(axis=1)] = Sibling.NONE
    states[chosen < 0] = Sibling.UNKNOWN
    return states.astype(np.uint8)


def _idle_at_first(trace: Trace) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each CPU was idle when the trace began: its first switch took its idle task off."""
    switched = switches(trace)
    cpus, first = np.unique(switched["cpu"].to_numpy(), return_index=True)
    idle = np.zeros(max(trace.topology.nr_cpus, int(cpus.max(initial=0)) + 1), bool)
    idle[cpus] = switched["prev_pid"].to_numpy()[first] == 0
    return idle


def _clear_offline(words: Words, trace: Trace, at: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Clear the bits of CPUs while they are offline; before a CPU's first event it was in the other state."""
    events = columns(trace, "hotplugs", "target_cpu", "online")
    ts, target, online = (events[c].to_numpy(np.int64) for c in ("ts", "target_cpu", "online"))
    for cpu in np.unique(target).tolist():
        mine = target == cpu
        states = np.concatenate((1 - online[mine][:1], online[mine]))
        offline = states[np.searchsorted(ts[mine], at, side="right")] == 0
        words[offline, cpu // 64] &= ~np.uint64(1 << cpu % 64)


@numba.njit(cache=True)
def _idle_at(  # type: ignore[no-untyped-def]
    sw_ts, sw_cpu, sw_next, idle, wk_ts, wk_pid, wk_cpu, begins, lost_ts, lost_cpu, pids
):
    """Words of the CPUs idle at each wakeup. lost: where loss windows end; who was on the way there may be past it."""
    one = np.uint64(1)
    now = np.zeros((len(idle) + 63) // 64, np.uint64)
    for cpu in range(len(idle)):
        if idle[cpu]:
            now[cpu >> 6] |= one << np.uint64(cpu & 63)
    coming = np.zeros(len(idle), np.int64)  # woken tasks on their way to each CPU
    going = np.full(pids, -1, np.int64)  # CPU each task is on its way to
    words = np.empty((len(wk_ts), len(now)), np.uint64)
    j, k = 0, 0
    for i in range(len(wk_ts)):
        while j < len(sw_ts) and sw_ts[j] <= wk_ts[i]:
            while k < len(lost_ts) and lost_ts[k] <= sw_ts[j]:
                going[going == lost_cpu[k]] = -1
                coming[lost_cpu[k]] = 0
                k += 1
            cpu, pid = sw_cpu[j], sw_next[j]
            idle[cpu] = pid == 0
            target = going[pid]
            if pid > 0 and target >= 0:
                going[pid] = -1
                coming[target] -= 1
                if idle[target] and coming[target] == 0:
                    now[target >> 6] |= one << np.uint64(target & 63)
            if idle[cpu] and coming[cpu] == 0:
                now[cpu >> 6] |= one << np.uint64(cpu & 63)
            else:
                now[cpu >> 6] &= ~(one << np.uint64(cpu & 63))
            j += 1
        words[i] = now
        target = wk_cpu[i]
        if begins[i] and target >= 0 and going[wk_pid[i]] < 0:
            going[wk_pid[i]] = target
            coming[target] += 1
            now[target >> 6] &= ~(one << np.uint64(target & 63))
    return words
