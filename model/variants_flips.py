# SPDX-License-Identifier: GPL-2.0-only
"""Flips as they would be under another record_wakee, derived over a whole trace from every task's own history.

Every task starts from the kernel's own flips at its first record, a child from its parent's at the fork. Where the
kernel's flips moved between two records without a recorded wakeup to explain it, the same move is made here, and
counted: what is not in the trace is not guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..analysis.tasks import df_tasks, wakee_codes, waker_codes
from ..schema import NEVER, Outcome
from ..trace import Trace
from .compiled import compiled
from .flips import record_both
from .policy import LlcFactor, Policy
from .topo import Array, machine
from .wakeup import record_jiffies

READ = (
    "cpu",
    "jiffies",
    "jiffies_exit",
    "outcome",
    "wakee_nr_allowed",
    "llc_size",
    "wakee_tag",
    "waker_flips",
    "waker_decay_ts",
    "waker_last_wakee",
    "waker_flips_exit",
    "waker_decay_ts_exit",
    "waker_last_wakee_exit",
    "wakee_flips",
    "wakee_decay_ts",
    "wakee_last_wakee",
)
DERIVED = np.dtype(
    [
        ("waker_flips", "<u4"),
        ("wakee_flips", "<u4"),
        ("waker_decay_ts", "<u8"),
        ("wakee_decay_ts", "<u8"),
        ("waker_last_wakee", "<u4"),
    ]
)
STATE = np.dtype([("known", "?"), ("flips", "<i8"), ("decay_ts", "<i8"), ("last_wakee", "<i8")])

# Outcomes for which task_waking_fair ran until v4.8, which recorded the wakee whether or not it was placed: all of a
# fair task that was not queued.
RECORDED_ALL = (Outcome.PLACED, Outcome.DELAYED, Outcome.PINNED, Outcome.MIGRATION_DISABLED, Outcome.WAKELIST)


@dataclass(frozen=True)
class FlipHistory:
    """Flips under a policy at every wakeup's entry, before it is recorded.

    rows: DERIVED, one per row of wakeups. followed: wakeups at which the kernel's own flips followed from the records
    before; unexplained: at which they had moved otherwise, and the move was taken over.
    """

    rows: Array
    followed: int
    unexplained: int

    def into(self, wakeups: Array, first: int) -> Array:
        """Rows of schema.WAKEUPS, the first being number first of the trace, with these flips for the kernel's."""
        rows = wakeups.copy()
        mine = self.rows[first : first + len(wakeups)]
        known = wakeups["waker_flips"] != NEVER
        for name in DERIVED.names or ():
            rows[name] = np.where(known, mine[name], wakeups[name])
        halved = wakeups["waker_decay_ts_exit"] != wakeups["waker_decay_ts"]  # by the kernel, which tells when it was
        rows["waker_decay_ts_exit"] = np.where(halved, wakeups["waker_decay_ts_exit"], rows["waker_decay_ts"])
        return rows


def recorded(policy: Policy, rows: Array) -> Array:
    """Whether record_wakee runs at each row under the policy, bool. Reads outcome and wakee_nr_allowed.

    Since v4.8 that is where select_task_rq_fair does, which not every kernel asks about the same wakeups.
    """
    if policy.record_all:
        return np.isin(rows["outcome"], [int(outcome) for outcome in RECORDED_ALL])
    also = [(Outcome.DELAYED, policy.delay_dequeue), (Outcome.WAKELIST, policy.on_cpu_queue)]
    placed = np.isin(rows["outcome"], [int(outcome) for outcome, left_out in also if not left_out])
    pinned = np.isin(rows["wakee_nr_allowed"], [1])
    return np.isin(rows["outcome"], [int(Outcome.PLACED)]) | (placed & ~pinned)


def same_flips(trace: Trace, policy: Policy, own: Policy) -> bool:
    """Whether the flips under a policy are the traced kernel's own. Needs table wakeups."""
    rows = trace.array("wakeups", ["outcome", "wakee_nr_allowed"])
    return policy.flips == own.flips and bool((recorded(policy, rows) == recorded(own, rows)).all())


def derive_flips(trace: Trace, policy: Policy, hz: int) -> FlipHistory:
    """Replay record_wakee as the policy has it over a trace. Needs tables wakeups and tasks."""
    rows = trace.array("wakeups", list(READ))
    cpus = machine(trace.topology).cpus
    sizes = np.where(rows["llc_size"] != NEVER, rows["llc_size"], cpus["llc_size"][rows["cpu"]]).astype(np.int64)
    if policy.llc_factor == LlcFactor.GROUPS:
        sizes = cpus["llc_groups"][rows["cpu"]].astype(np.int64)
    out = np.zeros(len(rows), DERIVED)
    tasks = len(df_tasks(trace))
    counts = np.zeros(2, np.int64)
    _derive(
        rows,
        waker_codes(trace),
        wakee_codes(trace),
        recorded(policy, rows),
        sizes,
        int(policy.flips),
        hz,
        np.zeros(tasks, STATE),
        np.zeros(tasks, STATE),
        out,
        counts,
    )
    return FlipHistory(out, int(counts[0]), int(counts[1]))


@compiled
def _derive(
    rows: Array,
    wakers: Array,
    wakees: Array,
    records: Array,
    sizes: Array,
    flips: int,
    hz: int,
    state: Array,
    kernel: Array,
    out: Array,
    counts: Array,
) -> None:
    """Fill out; state holds every task's values under the policy, kernel what the kernel last had."""
    births = np.zeros(2, np.int64)
    for i in range(len(rows)):
        row = rows[i]
        if row["waker_flips"] == NEVER:
            continue
        waker, wakee = wakers[i], wakees[i]
        own = (int(row["waker_flips"]), int(row["waker_decay_ts"]), int(row["waker_last_wakee"]))
        its = (int(row["wakee_flips"]), int(row["wakee_decay_ts"]), int(row["wakee_last_wakee"]))
        _meet(state[waker], kernel[waker], own, counts)
        born = row["outcome"] == Outcome.FORK and not state[wakee]["known"]
        if born:
            _inherit(state, kernel, waker, wakee)
        # a parent may wake others between the copy and its child's wakeup, so the child's first values tell nothing
        _meet(state[wakee], kernel[wakee], its, births if born else counts)
        out[i]["waker_flips"], out[i]["wakee_flips"] = state[waker]["flips"], state[wakee]["flips"]
        out[i]["waker_decay_ts"], out[i]["wakee_decay_ts"] = state[waker]["decay_ts"], state[wakee]["decay_ts"]
        out[i]["waker_last_wakee"] = state[waker]["last_wakee"]
        if records[i]:
            s, p = state[waker], state[wakee]
            mine = (s["flips"], s["decay_ts"], s["last_wakee"])
            after = record_both(
                flips, sizes[i], record_jiffies(row), hz, mine, (p["flips"], p["decay_ts"]), int(row["wakee_tag"])
            )
            p["flips"], p["decay_ts"] = after[3], after[4]
            s["flips"], s["decay_ts"], s["last_wakee"] = after[0], after[1], after[2]
        if row["waker_flips_exit"] != NEVER:
            kernel[waker]["flips"] = row["waker_flips_exit"]
            kernel[waker]["decay_ts"] = int(row["waker_decay_ts_exit"])
            kernel[waker]["last_wakee"] = row["waker_last_wakee_exit"]


@compiled
def _meet(state: Array, kernel: Array, values: tuple[int, int, int], counts: Array) -> None:
    """Take note of the kernel's values of a task: its first ones to start from, later ones for what moved unseen."""
    if not state["known"]:
        state["known"] = True
        state["flips"], state["decay_ts"], state["last_wakee"] = values
    elif kernel["flips"] == values[0] and kernel["decay_ts"] == values[1] and kernel["last_wakee"] == values[2]:
        counts[0] += 1
    else:
        counts[1] += 1
        state["flips"] = max(0, state["flips"] + values[0] - kernel["flips"])
        if kernel["decay_ts"] != values[1]:
            state["decay_ts"] = values[1]
        if kernel["last_wakee"] != values[2]:
            state["last_wakee"] = values[2]
    kernel["flips"], kernel["decay_ts"], kernel["last_wakee"] = values


@compiled
def _inherit(state: Array, kernel: Array, parent: int, child: int) -> None:
    """dup_task_struct: a child starts with its parent's values."""
    state[child] = state[parent]
    kernel[child] = kernel[parent]
