# SPDX-License-Identifier: GPL-2.0-only
"""Policies compared on one trace: which decisions move, where to, what stacks, what is pulled across nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.distance import NAMES, Distance, distance
from ..analysis.occupancy import idle_words, llc_words
from ..analysis.tasks import df_tasks
from ..analysis.wakeups import df_wakeups
from ..errors import TraceError, UsageError
from ..schema import Context, Outcome
from ..topology import Topology
from ..trace import Trace
from .captured import captured
from .forks import Forks, forks
from .kernels import policy_for
from .loads import Loads
from .numa_retry import NumaHistory, Retries
from .policy import Idlest, Policy
from .replay import Certainty, replay
from .topo import Array
from .validate import wilson
from .variants_flips import derive_flips, same_flips
from .variants_recent import RecentHistory, derive_recents
from .wakeup import Doubt

OPEN_LOOP = (
    "Replay is open-loop: each decision starts from what the kernel saw, so a decision that moves changes nothing for "
    "the ones after it."
)
KERNEL = "kernel"  # name of what the kernel itself did, beside the policies
LEVELS = ("core", "llc", "node")
MARKS = ("wide", "on_waker", "stacked", "stacked_llc", "cross_node")
KINDS = {Outcome.PLACED: "wakeup", Outcome.FORK: "fork", Outcome.EXEC: "exec"}


@dataclass
class Judged:
    """What one policy does with every decision of the trace, and what that means there.

    decisions, one row per decision in the order of Contrast.decisions: cpu (-1 undecidable), decided (bool), path,
    affine, certainty (codes of Path, Affine, Certainty), wide_known (bool), and the MARKS (bool): wide: wake_wide said
    yes; and of decided ones on_waker: the waker's own CPU, in task context; stacked: a busy CPU though an allowed one
    was idle, and stacked_llc: one of its LLC; cross_node: another node than prev's.
    """

    name: str
    decisions: pd.DataFrame
    notes: list[str] = field(default_factory=list)  # what of the policy the trace cannot tell, and what was done then
    forks: Forks | None = None  # where they go, if that was to be approximated and the policy's rule is known
    numa: Retries | None = None  # NUMA placement over time, if the trace has NUMA hint faults

    def known(self, mark: str) -> Array:
        """Decisions of which the mark is known, bool: for wide not the same as the decided ones."""
        return self.decisions["wide_known" if mark == "wide" else "decided"].to_numpy()

    def shares(self) -> dict[str, dict[str, Any]]:
        """proportion() of all decisions that bear each mark."""
        found = {}
        for mark in MARKS:
            unknown = int((~self.known(mark)).sum())
            found[mark] = proportion(int(self.decisions[mark].sum()), unknown, len(self.decisions))
        return found


@dataclass
class Comparison:
    """How a policy's decisions differ from the base's, among those decided under both; wide, where known under both."""

    base: Judged
    other: Judged
    contrast: Contrast

    @property
    def both(self) -> Array:
        """Decided under both, bool."""
        return (self.base.decisions["decided"] & self.other.decisions["decided"]).to_numpy()

    def known(self, mark: str) -> Array:
        """Decisions of which the mark is known under both, bool."""
        return self.base.known(mark) & self.other.known(mark)

    @property
    def moved(self) -> Array:
        """Decided under both and not on the same CPU, bool."""
        return self.both & (self.base.decisions["cpu"] != self.other.decisions["cpu"]).to_numpy()

    def distances(self) -> dict[str, int]:
        """Moved decisions by the distance between the two CPUs (analysis.distance)."""
        here, there = (side.decisions["cpu"].to_numpy()[self.moved] for side in (self.base, self.other))
        counts = np.bincount(distance(self.contrast.topology, here, there), minlength=len(NAMES))
        return {name: int(n) for name, n in zip(NAMES, counts, strict=True) if n}

    def df_from_to(self) -> pd.DataFrame:
        """Moved decisions by where they go: level (core, llc, node), from_id, to_id (lowest CPU, or node), decisions.

        Only moves that leave the core, LLC or node are counted at that level.
        """
        parts = []
        for level in LEVELS:
            of = self.contrast.topology.by_cpu(level)
            ends = [of[side.decisions["cpu"].to_numpy()[self.moved]] for side in (self.base, self.other)]
            rows = pd.DataFrame({"level": level, "from_id": ends[0], "to_id": ends[1]})
            rows = rows[rows["from_id"] != rows["to_id"]]
            parts.append(rows.groupby(["level", "from_id", "to_id"]).size().rename("decisions").reset_index())
        return pd.concat(parts, ignore_index=True)

    def changes(self) -> dict[str, dict[str, Any]]:
        """What becomes of each mark among decisions of which it is known under both: base, other (counts), gained, lost
        (proportion() of all decisions).
        """
        found = {}
        for mark in MARKS:
            known = self.known(mark)
            unknown = int((~known).sum())
            before, after = (side.decisions[mark].to_numpy() & known for side in (self.base, self.other))
            found[mark] = {
                "base": int(before.sum()),
                "other": int(after.sum()),
                "gained": proportion(int((after & ~before).sum()), unknown, len(known)),
                "lost": proportion(int((before & ~after).sum()), unknown, len(known)),
            }
        return found

    def df_by(self, *keys: str) -> pd.DataFrame:
        """By columns of Contrast.decisions: decisions, undecidable (not decided under both), moved, low and high
        (bounds of its share, as in proportion()), wide_unknown (under either), and each mark before and after among
        those of which it is known under both.
        """
        both = self.both
        marks = {"decisions": np.ones(len(both), bool), "undecidable": ~both, "moved": self.moved}
        marks["wide_unknown"] = ~self.known("wide")
        for mark in MARKS:
            marks[f"{mark}_base"] = self.base.decisions[mark].to_numpy() & self.known(mark)
            marks[f"{mark}_other"] = self.other.decisions[mark].to_numpy() & self.known(mark)
        by = [self.contrast.decisions[key] for key in keys]
        table = pd.DataFrame(marks).groupby(by, sort=False).sum().reset_index()
        counts = table[["moved", "undecidable", "decisions"]].to_numpy().tolist()
        shares = [proportion(*row) for row in counts]
        for place, name in enumerate(("low", "high"), list(table.columns).index("moved") + 1):
            table.insert(place, name, [share[name] for share in shares])
        return table.sort_values(["moved", "decisions"], ascending=False, kind="stable", ignore_index=True)

    def to_json(self) -> dict[str, Any]:
        """policy, base, decided, undecidable, moved {count, share, low, high}, distances, changes, from_to, by_kind,
        by_task, by_pair.
        """
        both = self.both
        return {
            "policy": self.other.name,
            "base": self.base.name,
            "decided": int(both.sum()),
            "undecidable": int((~both).sum()),
            "moved": proportion(int(self.moved.sum()), int((~both).sum()), len(both)),
            "distances": self.distances(),
            "changes": self.changes(),
            "from_to": self.df_from_to().to_dict("records"),
            "by_kind": self.df_by("kind").to_dict("records"),
            "by_task": self.df_by("wakee").to_dict("records"),
            "by_pair": self.df_by("waker", "wakee").to_dict("records"),
        }


@dataclass
class Contrast:
    """Policies on the decisions of one trace; the first is the base of every comparison.

    decisions: row (of wakeups), ts (ns), kind (wakeup, fork, exec), cpu (the waker's), prev_cpu, kernel_cpu, waker and
    wakee (labels). Forks and execs are among them if the trace has the figures they were placed by.
    not_replayed: forks and execs otherwise, and how many of them the kernel placed on another node; delayed and
    wakelist: wakeups that kernels before 6.12 and 5.8 would have placed.
    """

    topology: Topology
    decisions: pd.DataFrame
    not_replayed: dict[str, int]
    kernel: Judged
    policies: list[Judged]

    @property
    def comparisons(self) -> list[Comparison]:
        """Every policy but the first against the first."""
        return [Comparison(self.policies[0], other, self) for other in self.policies[1:]]

    def to_json(self) -> dict[str, Any]:
        """statement, decisions, not_replayed, comparisons, and policies {name: {decided, undecidable, notes, wide, …,
        forks, numa}} with "kernel" for what the kernel did.
        """
        policies = {}
        for judged in [self.kernel, *self.policies]:
            decided = int(judged.decisions["decided"].sum())
            undecidable = len(self.decisions) - decided
            counts = {"decided": decided, "undecidable": undecidable, "notes": judged.notes}
            numa = judged.numa.to_json() if judged.numa else None
            forks = judged.forks.to_json() if judged.forks else None
            policies[judged.name] = {**counts, **judged.shares(), "forks": forks, "numa": numa}
        return {
            "statement": OPEN_LOOP,
            "decisions": len(self.decisions),
            "not_replayed": self.not_replayed,
            "policies": policies,
            "comparisons": [c.to_json() for c in self.comparisons],
        }

    def df(self) -> pd.DataFrame:
        """Every decision under every policy, one row each: policy, then the columns of decisions and of Judged."""
        parts = []
        for judged in [self.kernel, *self.policies]:
            decided = judged.decisions.rename(columns={"cpu": "policy_cpu"})
            parts.append(pd.concat([self.decisions, decided], axis=1).assign(policy=judged.name))
        return pd.concat(parts, ignore_index=True)


def proportion(hits: int, unknown: int, of: int) -> dict[str, Any]:
    """count, unknown, share of `of`, low and high (None of 0).

    share is None if some are unknown. low and high are 95 % Wilson bounds: the lower one if no unknown is a hit, the
    upper one if all are.
    """
    share = hits / of if of and not unknown else None
    low, high = wilson(hits, of)[0], wilson(hits + unknown, of)[1]
    return {"count": hits, "unknown": unknown, "share": share, "low": low, "high": high}


def contrast(trace: Trace, policies: Sequence[tuple[str, Policy]], approximate: bool = False) -> Contrast:
    """Replay a trace under each (name, policy) and judge every decision.

    approximate: see captured(). Needs tables wakeups, switches and tasks. Raises UsageError if two policies share a
    name, ModelError if the traced kernel is not modelled, TraceError if nothing was placed or HZ is unknown.
    """
    if len({name for name, _ in policies}) < len(policies):
        raise UsageError("the same policy is named twice: contrast needs different ones")
    hz = trace.meta.get("hz")
    if not hz:
        raise TraceError(f"{trace.path} does not say HZ, which flips depend on: record again")
    own = policy_for(trace.meta).policy
    recents = derive_recents(trace, policies, own, hz, approximate)
    readers = {name: _Reader(trace, policy, own, hz, approximate, recents.get(name)) for name, policy in policies}
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in (KERNEL, *readers)}
    first = 0
    rows = []
    loads = Loads.of(trace)
    for wakeups in trace.chunks("wakeups"):
        judge = _Judge(wakeups, first, trace, loads)
        rows.append(first + judge.placed)
        parts[KERNEL].append(judge.kernel())
        for name, reader in readers.items():
            parts[name].append(judge.policy(reader.replay(wakeups, first)))
        first += len(wakeups)
    row = np.concatenate(rows) if rows else np.empty(0, np.int64)
    if not len(row):
        raise TraceError(f"{trace.path} holds no placed wakeups: record for longer, or under load")
    judged = {name: Judged(name, pd.concat(frames, ignore_index=True)) for name, frames in parts.items()}
    faults = NumaHistory(trace, hz) if trace.has("numa") else None
    for name, reader in readers.items():
        judged[name].notes = reader.notes
        if approximate and reader.captured.policy.idlest == Idlest.RUNNABLE:
            judged[name].forks = forks(trace, reader.captured.policy)
        if faults:
            judged[name].numa = faults.replay(reader.captured.policy, np.concatenate(reader.results))
    kernel = judged.pop(KERNEL)
    return Contrast(trace.topology, _decisions(trace, row), _not_replayed(trace), kernel, list(judged.values()))


class _Reader:
    """Replays pieces of a trace under one policy, from what the trace can tell it."""

    def __init__(
        self, trace: Trace, policy: Policy, own: Policy, hz: int, approximate: bool, recent: RecentHistory | None
    ) -> None:
        self.topology, self.hz = trace.topology, hz
        self.captured = captured(policy, own, approximate)
        self.notes = list(self.captured.notes)
        self.results: list[Array] = []
        self.loads = Loads.of(trace)
        self.flips = None
        if not same_flips(trace, policy, own):
            self.flips = derive_flips(trace, policy, hz)
            self.notes.append(
                f"flips are derived over the whole trace; the kernel's own followed from the records at "
                f"{self.flips.followed:,} of {self.flips.followed + self.flips.unexplained:,}"
            )
        self.recent = recent
        if recent:
            self.notes.append(
                "recent_used_cpu is followed over the whole trace, since kernels up to 5.14 keep it by another rule; "
                "where it is not known, a decision counts as decided only where any gives the same CPU"
            )

    def replay(self, wakeups: Array, first: int) -> Array:
        """RESULT rows for a piece whose first row is number first."""
        rows = self.flips.into(wakeups, first) if self.flips else wakeups
        rows = self.recent.into(rows, first) if self.recent else rows
        seen = self.captured.rows(rows)
        self.results.append(replay(seen, self.topology, self.captured.policy, self.hz, self.loads))
        return self.results[-1]


def _decisions(trace: Trace, row: Array) -> pd.DataFrame:
    wakeups = df_wakeups(trace).iloc[row]
    labels = df_tasks(trace)["label"].to_numpy(object)
    return pd.DataFrame(
        {
            "row": row,
            "ts": wakeups["ts"].to_numpy(),
            "kind": wakeups["outcome"].map(KINDS).to_numpy(),
            "cpu": wakeups["cpu"].to_numpy(),
            "prev_cpu": wakeups["prev_cpu"].to_numpy(),
            "kernel_cpu": wakeups["chosen_cpu"].to_numpy(),
            "waker": labels[wakeups["waker"]],
            "wakee": labels[wakeups["wakee"]],
        }
    )


def _not_replayed(trace: Trace) -> dict[str, int]:
    wakeups = df_wakeups(trace)
    left = wakeups["outcome"].where(~wakeups["outcome"].isin(_kinds(trace)))
    new = left.isin([int(Outcome.FORK), int(Outcome.EXEC)])
    return {
        "forks": int((left == int(Outcome.FORK)).sum()),
        "execs": int((left == int(Outcome.EXEC)).sum()),
        "to_another_node": int((new & (wakeups["reach"] == int(Distance.CROSS))).sum()),
        "delayed": int((wakeups["outcome"] == int(Outcome.DELAYED)).sum()),
        "wakelist": int((wakeups["outcome"] == int(Outcome.WAKELIST)).sum()),
    }


def _kinds(trace: Trace) -> list[int]:
    """Outcomes that are replayed."""
    return [int(Outcome.PLACED), *([int(Outcome.FORK), int(Outcome.EXEC)] if trace.has("loads") else [])]


class _Judge:
    """Marks the decisions of one piece of a trace, whose first row is number first."""

    def __init__(self, wakeups: Array, first: int, trace: Trace, loads: Loads) -> None:
        topology = trace.topology
        self.placed = np.flatnonzero(np.isin(wakeups["outcome"], _kinds(trace)))
        rows = loads.with_idle(wakeups[self.placed])
        self.rows = rows
        self.by_task = np.isin(rows["context"], (Context.TASK, Context.UNKNOWN)) & (rows["waker_pid"] > 0)
        idle, known = (words[first + self.placed] for words in idle_words(trace))
        _, begin, end = loads.find(rows)
        of_all = begin < end  # forks and execs: their figures are of every CPU
        idle[of_all], known[of_all] = rows["idle"][of_all], ~np.uint64(0)
        self.busy = known & ~idle
        masks = of_all | (rows["has_masks"] > 0)
        self.busy[masks] &= ~rows["sched_idle"][masks]
        self.free = idle & rows["allowed"]
        self.llc = llc_words(topology)
        self.node = np.append(topology.by_cpu("node"), -1)

    def kernel(self) -> pd.DataFrame:
        """What the kernel did; its verdicts in between are not known."""
        cpu = self.rows["chosen_cpu"]
        code = np.full(len(cpu), -1, np.int8)
        codes = dict.fromkeys(("path", "affine", "certainty"), code)
        wide = dict.fromkeys(("wide", "wide_known"), np.zeros(len(cpu), bool))
        return pd.DataFrame({"cpu": cpu, "decided": cpu >= 0, **codes, **wide, **self._marks(cpu, cpu >= 0)})

    def policy(self, results: Array) -> pd.DataFrame:
        """What a policy does, by its RESULT rows."""
        found = results[self.placed]
        decided = found["certainty"] != Certainty.UNDECIDABLE
        codes = {name: found[name].astype(np.int8) for name in ("path", "affine", "certainty")}
        known = found["doubt"] & Doubt.WIDE.value == 0
        wide = {"wide": known & (found["wide"] == 1), "wide_known": known}
        return pd.DataFrame(
            {"cpu": found["cpu"], "decided": decided, **codes, **wide, **self._marks(found["cpu"], decided)}
        )

    def _marks(self, cpu: Array, decided: Array) -> dict[str, Array]:
        at, bit = np.arange(len(cpu)), np.uint64(1) << (cpu % 64).astype(np.uint64)
        busy = decided & (self.busy[at, cpu // 64] & bit != 0)
        return {
            "on_waker": (cpu == self.rows["cpu"]) & self.by_task & decided,
            "stacked": busy & self.free.any(axis=1),
            "stacked_llc": busy & (self.free & self.llc[cpu]).any(axis=1),
            "cross_node": (self.node[cpu] != self.node[self.rows["prev_cpu"]]) & decided,
        }
