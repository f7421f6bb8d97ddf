# SPDX-License-Identifier: GPL-2.0-only
"""Wakee flips and the wide verdict."""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .wakeup import UNKNOWN, Doubt, Wakeup, either


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
def wake_wide(w: Wakeup, master: int, slave: int) -> bool:
    """Whether waker and wakee have too many partners for one LLC; master is current's flips, slave p's.

    Symmetric since 63b0e9edceec (v4.3). The product is 32-bit and unsigned, as in the kernel.
    """
    if master == UNKNOWN or slave == UNKNOWN:
        return either(w, Doubt.WIDE)
    factor = w.factor
    if master < slave:
        master, slave = slave, master
    return not (slave < factor or master < ((slave * factor) & 0xFFFFFFFF))
