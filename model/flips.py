# SPDX-License-Identifier: GPL-2.0-only
"""Wakee flips, their reconstruction over a whole trace, and the wide verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..schema import NEVER, Outcome
from .compiled import compiled
from .policy import Flips, Policy, Wide
from .topo import Array
from .wakeup import UNKNOWN, Doubt, Wakeup, either

VALUES = ("waker_flips", "waker_decay_ts", "waker_last_wakee")
COLUMNS = (
    "ts",
    "jiffies",
    "jiffies_exit",
    "waker_pid",
    "waker_start",
    "waker_tag",
    "wakee_tag",
    "outcome",
    *VALUES,
)  # of check_flips


@compiled
def record_wakee(jiffies: int, hz: int, flips: int, decay_ts: int, last_wakee: int, wakee: int) -> tuple[int, int, int]:
    """current's (wakee_flips, wakee_flip_decay_ts, last_wakee) after it woke wakee.

    Flips are halved once if more than a second of jiffies has gone by since they last were, however long ago that is,
    and rise by one if the wakee is another task than the last (unchanged from 4.2 to 7.3).
    """
    if np.int64(jiffies) - np.int64(decay_ts) - hz > 0:  # time_after()
        flips = flips >> 1
        decay_ts = jiffies
    if last_wakee != wakee:
        last_wakee = wakee
        flips = (flips + 1) & 0xFFFFFFFF
    return flips, decay_ts, last_wakee


@compiled
def record_both(
    flips: int,
    factor: int,
    jiffies: int,
    hz: int,
    waker: tuple[int, int, int],
    wakee: tuple[int, int],
    tag: int,
) -> tuple[int, int, int, int, int]:
    """record_wakee where p's flips count too: current's (flips, decay_ts, last_wakee) and p's (flips, decay_ts) after.

    flips: Flips.BOTH (Mike Galbraith, 26 Sep 2015) or Flips.HEAVY (Mike Galbraith, 4 Oct 2021; it compares current's
    flips as they are before they rise). tag stands for p.
    """
    waker_flips, waker_ts, last = record_wakee(jiffies, hz, waker[0], waker[1], waker[2], tag)
    wakee_flips, wakee_ts = wakee
    another = waker[2] != tag
    if flips == Flips.BOTH:
        if np.int64(jiffies) - np.int64(wakee_ts) - hz > 0:
            wakee_flips, wakee_ts = wakee_flips >> 1, jiffies
        if another:
            wakee_flips = (wakee_flips + 1) & 0xFFFFFFFF
    elif flips == Flips.HEAVY and another and waker_flips - 1 > ((wakee_flips * (factor << 1)) & 0xFFFFFFFF):
        wakee_flips = (wakee_flips + 1) & 0xFFFFFFFF
    return waker_flips, waker_ts, last, wakee_flips, wakee_ts


@compiled
def flips_after(policy: Policy, w: Wakeup, hz: int) -> tuple[int, int]:
    """current's and p's flips after record_wakee, UNKNOWN where they were not captured."""
    flips, wakee_flips = w.waker_flips, w.wakee_flips
    if flips == UNKNOWN:
        return UNKNOWN, wakee_flips if policy.flips == Flips.WAKER else UNKNOWN
    waker = (flips, w.waker_decay_ts, w.waker_last_wakee)
    if policy.flips == Flips.WAKER or wakee_flips == UNKNOWN or w.factor == UNKNOWN:
        flips, _, _ = record_wakee(w.recorded, hz, waker[0], waker[1], waker[2], w.wakee_tag)
        return flips, wakee_flips if policy.flips == Flips.WAKER else UNKNOWN
    wakee = (wakee_flips, w.wakee_decay_ts)
    flips, _, _, wakee_flips, _ = record_both(policy.flips, w.factor, w.recorded, hz, waker, wakee, w.wakee_tag)
    return flips, wakee_flips


@compiled
def wake_wide(policy: Policy, w: Wakeup, master: int, slave: int) -> bool:
    """Whether waker and wakee have too many partners for one LLC; master is current's flips, slave p's.

    Symmetric since 63b0e9edceec (v4.3). The products are 32-bit and unsigned, as in the kernel (64-bit until v4.2).
    """
    if master == UNKNOWN or slave == UNKNOWN or w.factor == UNKNOWN:
        return either(w, Doubt.WIDE)
    factor = w.factor
    if policy.wide == Wide.ASYMMETRIC:
        return bool(slave > factor and master > factor * slave)
    if master < slave:
        master, slave = slave, master
    few = slave < factor
    if policy.wide == Wide.HEAVY:
        few = few and master < (factor >> 1) * factor
    return not (few or master < ((slave * factor) & 0xFFFFFFFF))


# How the kernel's values at a waker's next record follow from those at its last.
MATCHED, UNCHANGED, UNEXPLAINED, LOST = 0, 1, 2, 3


@dataclass(frozen=True)
class FlipCheck:
    """record_wakee's rule against the kernel's values, from one record of a waker to its next."""

    matched: int  # the rule gives the kernel's flips, decay stamp and last wakee
    unchanged: int  # it does not, and the kernel left all three as they were: it never came to record_wakee
    unexplained: int  # neither
    lost: int  # not judged: records may have been lost between the two
    rows: Array  # int64: rows of the later record of unexplained steps, at most 100


def check_flips(wakeups: Array, hz: int, windows: Iterable[tuple[int, int]] = ()) -> FlipCheck:
    """Rebuild every waker's flips from record to record and compare with what the kernel had.

    wakeups: rows with at least COLUMNS, any order; windows: (start, end) in ns of loss on any CPU. A step starts from
    the kernel's own values at the earlier record, so it resynchronises by itself. The rule applies to wakeups that came
    to placement; the other outcomes must leave the values alone, except WAKELIST, which may do either where only
    tracepoints were recorded.
    """
    known = np.flatnonzero(wakeups["waker_flips"] != NEVER)
    keys = [wakeups[name][known] for name in ("ts", "waker_tag", "waker_pid", "waker_start")]
    order = known[np.lexsort(keys)]
    rows = np.empty(len(order), [(name, np.int64) for name in COLUMNS])
    for name in COLUMNS:
        rows[name] = wakeups[name][order]
    verdicts = np.full(len(rows), -1, np.int8)
    _chain(rows, hz, verdicts)
    steps = np.flatnonzero(verdicts >= 0)
    verdicts[steps[overlaps(rows["ts"][steps - 1], rows["ts"][steps], windows)]] = LOST
    matched, unchanged, unexplained, lost = np.bincount(verdicts[steps], minlength=4).tolist()
    return FlipCheck(matched, unchanged, unexplained, lost, order[verdicts == UNEXPLAINED][:100])


def overlaps(start: Array, end: Array, windows: Iterable[tuple[int, int]]) -> Array:
    """Which of the spans from start to end overlap a window, bool."""
    windows = list(windows)
    opened = np.sort(np.array([w[0] for w in windows], np.int64))
    closed = np.sort(np.array([w[1] for w in windows], np.int64))
    return np.searchsorted(opened, end, "left") > np.searchsorted(closed, start, "right")


@compiled
def _chain(rows: Array, hz: int, verdicts: Array) -> None:
    """Judge each row against the one before it, if that is of the same waker.

    The kernel read jiffies after the probe did: where it halved the flips, its stamp says which jiffy that was.
    """
    for i in range(1, len(rows)):
        last, row = rows[i - 1], rows[i]
        same_task = last["waker_pid"] == row["waker_pid"] and last["waker_start"] == row["waker_start"]
        if not same_task or last["waker_tag"] != row["waker_tag"]:
            continue
        kernel = (row["waker_flips"], row["waker_decay_ts"], row["waker_last_wakee"])
        held = (last["waker_flips"], last["waker_decay_ts"], last["waker_last_wakee"])
        stamp = row["waker_decay_ts"]
        if not last["jiffies"] < stamp <= last["jiffies_exit"]:
            stamp = last["jiffies"]
        by_rule = kernel == record_wakee(stamp, hz, held[0], held[1], held[2], last["wakee_tag"])
        unchanged = kernel == held
        placed = last["outcome"] == Outcome.PLACED
        either_way = last["outcome"] == Outcome.WAKELIST
        if (placed and by_rule) or (not placed and unchanged) or (either_way and by_rule):
            verdicts[i] = MATCHED
        elif placed and unchanged:
            verdicts[i] = UNCHANGED
        else:
            verdicts[i] = UNEXPLAINED
