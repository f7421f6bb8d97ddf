# SPDX-License-Identifier: GPL-2.0-only
"""recent_used_cpu as kernels that keep it by another rule than the traced one would have left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis.tasks import df_tasks, wakee_codes, waker_codes
from ..trace import Trace
from .captured import captured
from .loads import Loads
from .policy import Policy, RecentUsed
from .recent import Recents
from .replay import replay
from .topo import Array
from .variants import unpatched
from .variants_flips import derive_flips, recorded, same_flips
from .wakeup import ANY_CPU


@dataclass(frozen=True)
class RecentHistory:
    """cpus: recent_used_cpu of the wakee at every wakeup's entry, int16 by row of wakeups; ANY_CPU where not known."""

    cpus: Array

    def into(self, wakeups: Array, first: int) -> Array:
        """Rows of schema.WAKEUPS, the first being number first of the trace, with these for the kernel's."""
        rows = wakeups.copy()
        rows["recent_used_cpu"] = self.cpus[first : first + len(wakeups)]
        return rows


def same_recent(policy: Policy, own: Policy) -> bool:
    """Whether the policy keeps recent_used_cpu as the traced kernel does, or does without."""
    on_hit = [p.recent_used == RecentUsed.ON_HIT for p in (policy, own)]
    return policy.recent_used == RecentUsed.NEVER or on_hit[0] == on_hit[1]


def derive_recents(
    trace: Trace, policies: Sequence[tuple[str, Policy]], own: Policy, hz: int, approximate: bool
) -> dict[str, RecentHistory]:
    """RecentHistory of each (name, policy) that needs one, by name.

    Patches start from what their release leaves behind without them: what a patch does to recent_used_cpu stays out,
    since every decision is to start from the same.
    """
    releases = {name: unpatched(name, policy, trace.meta) for name, policy in policies if not same_recent(policy, own)}
    histories = {release: derive_recent(trace, release, own, hz, approximate) for release in {*releases.values()}}
    return {name: histories[release] for name, release in releases.items()}


def derive_recent(trace: Trace, policy: Policy, own: Policy, hz: int, approximate: bool = False) -> RecentHistory:
    """Replay a trace under a release's policy, each decision with what the ones before it left in recent_used_cpu.

    No task's is known until a fork, or a decision that sets it whatever it was; after a loss window none is. Needs
    tables wakeups and tasks.
    """
    reader = captured(policy, own, approximate)
    flips = None if same_flips(trace, policy, own) else derive_flips(trace, policy, hz)
    loads = Loads.of(trace)
    wakers, wakees = waker_codes(trace), wakee_codes(trace)
    blind = _blind(trace)
    state = np.full(len(df_tasks(trace)), ANY_CPU, np.int64)
    parts = [np.empty(0, np.int16)]
    first = 0
    for wakeups in trace.chunks("wakeups"):
        part = slice(first, first + len(wakeups))
        rows = reader.rows(flips.into(wakeups, first) if flips else wakeups)
        places = recorded(policy, rows)
        seen = rows["recent_used_cpu"].copy()
        recents = Recents(int(policy.recent_used), wakers[part], wakees[part], blind[part], places, state, seen)
        replay(rows, trace.topology, reader.policy, hz, loads, recents)
        parts.append(seen)
        first += len(wakeups)
    return RecentHistory(np.concatenate(parts))


def _blind(trace: Trace) -> Array:
    """Wakeups within a loss window and the first one after it, bool."""
    ts = trace.array("wakeups", ["ts"])["ts"].astype(np.int64)
    blind = np.zeros(len(ts), np.bool_)
    for start, end in trace.loss("wakeups")[["start", "end"]].itertuples(index=False, name=None):
        blind[np.searchsorted(ts, start, "right") : np.searchsorted(ts, end, "left") + 1] = True
    return blind
