# SPDX-License-Identifier: GPL-2.0-only
"""How often the model and the kernel agree, where they do not, and with what inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .. import schema
from ..analysis import distance
from ..errors import TraceError
from ..schema import MASK, WAKEUPS, Outcome
from ..topology import Topology
from ..trace import Trace
from .affine import Affine
from .flickers import mark_flickers
from .flips import COLUMNS, FlipCheck, check_flips
from .idle import Path
from .kernels import Kernel, policy_for, unseen_by_any
from .loads import NONE, Loads
from .order import Calls, same_calls
from .policy import AffineCount, Policy
from .races import Change
from .replay import Certainty, replay
from .topo import Array
from .wakeup import Doubt

LOADS = [column.name for column in schema.LOADS]
WORST = 20  # disagreements kept with all inputs
_WEIGHING = Doubt.SYNC | Doubt.WIDE | Doubt.ALONE | Doubt.WEIGHT  # doubts that leave wake_affine's verdict open


@dataclass
class Share:
    """Decisions, how many of them agreed, and the share with its 95 % Wilson interval (None of 0 decisions)."""

    decisions: int = 0
    agree: int = 0

    @property
    def share(self) -> float | None:
        """agree / decisions."""
        return self.agree / self.decisions if self.decisions else None

    def to_dict(self) -> dict[str, Any]:
        """decisions, agree, share, low and high."""
        low, high = wilson(self.agree, self.decisions)
        return {**asdict(self), "share": self.share, "low": low, "high": high}


@dataclass
class Agreement:
    """Agreement of decisions of one kind: wakeups, or forks and execs."""

    certainty: dict[str, Share]
    path: dict[str, Share]
    distance: dict[str, Share]
    order: Share
    out_of_order: list[int]
    doubts: dict[str, int]
    impossible: int
    cpu_unknown: int
    causes: dict[str, int]
    disagreements: list[dict[str, Any]]

    @property
    def all(self) -> Share:
        """Every decision; one that is undecidable does not agree."""
        shares = self.certainty.values()
        return Share(sum(s.decisions for s in shares), sum(s.agree for s in shares))

    def to_dict(self) -> dict[str, Any]:
        """The JSON values of Validation.to_json() that are of one kind of decision."""
        certainty = {name: share.decisions for name, share in self.certainty.items()}
        return {
            "decisions": self.all.decisions,
            "exact": certainty["EXACT"],
            "raced": certainty["RACED"],
            "undecidable": certainty["UNDECIDABLE"],
            "agree_all": self.all.share,
            "agree_exact": self.certainty["EXACT"].share,
            "impossible": self.impossible,
            "cpu_unknown": self.cpu_unknown,
            "by_certainty": _dicts(self.certainty),
            "by_path": _dicts(self.path),
            "by_distance": _dicts(self.distance),
            "order": self.order.to_dict(),
            "out_of_order": self.out_of_order,
            "doubts": self.doubts,
            "causes": self.causes,
            "disagreements": self.disagreements,
        }


@dataclass
class Validation(Agreement):
    """Agreement of one trace with the policy of the kernel it was recorded on: of its wakeups, and of its forks."""

    kernel: Kernel
    given: bool
    clean_share: float
    affine: dict[str, Share]
    not_placed: dict[str, int]
    ends: int
    flips: FlipCheck
    forks: Agreement

    def to_json(self) -> dict[str, Any]:
        """One object of JSON values.

        release: the stable release the features were taken from, or the policy's name if one was given (given: bool);
        policy: feature -> number; unseen: [text] of what could not be seen of the kernel. decisions, exact, raced,
        undecidable: counts; agree_all, agree_exact: fractions, null of none; impossible: decisions whose CPU no value
        of the missed facts gives; cpu_unknown: decisions in no count but order, since the trace lacks the kernel's CPU;
        clean_share: fraction of the span without loss. by_certainty, by_path (undecidable ones under UNDECIDABLE),
        by_distance (how far the kernel moved the wakee from prev), affine (attempts, moves: wake_affine's verdict on
        exact decisions against the schedstat counters): name -> {decisions, agree, share, low, high}, the bounds being
        Wilson's at 95 %. order: the same of exact decisions of tier deep, agree being those in which the kernel made
        the calls that the model makes, in the same order; out_of_order: rows of the first 20 others. doubts: fact
        missed -> undecidable decisions that missed it. not_placed: outcome -> wakeups that never came to placement;
        ends: wakeups left out of all counts because some probe was not attached yet or not any more. flips: {matched,
        unchanged, unexplained, lost}. causes: what changed while the kernel decided (races.Change) -> impossible
        decisions that looked at it, "" if nothing did. disagreements: at most 20, {wakeup: row, model: {…}, kernel_cpu,
        inputs: {column: value}}, the certain and the farthest first. All of that is of wakeups; forks: of forks and
        execs, {decisions, exact, …, disagreements}, the latter with loads: [{column: value}], their rows of that table.
        """
        return {
            "release": self.kernel.release,
            "given": self.given,
            "policy": {name: int(value) for name, value in self.kernel.policy._asdict().items()},
            "unseen": self.kernel.unseen,
            "clean_share": self.clean_share,
            **self.to_dict(),
            "affine": _dicts(self.affine),
            "not_placed": self.not_placed,
            "ends": self.ends,
            "flips": {name: getattr(self.flips, name) for name in ("matched", "unchanged", "unexplained", "lost")},
            "forks": self.forks.to_dict(),
        }


def wilson(hits: int, trials: int, z: float = 1.959964) -> tuple[float | None, float | None]:
    """Wilson's score interval of a proportion (E. B. Wilson, JASA 22, 1927); (None, None) of no trials."""
    if not trials:
        return None, None
    share, square = hits / trials, z * z / trials
    middle = share + square / 2
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def validate(trace: Trace, policy: Policy | None = None, name: str = "unnamed") -> Validation:
    """Replay a trace under its own kernel's policy (or the one given, by its name) and compare.

    Raises TraceError if there are no wakeups, ModelError if the kernel is not modelled and no policy is given.
    """
    trace.require("wakeups")
    if not trace.rows("wakeups"):
        raise TraceError(f"{trace.path} holds no wakeups: record for longer, or under load")
    kernel = Kernel(policy, name, unseen_by_any(trace.meta)) if policy else policy_for(trace.meta)
    hz = trace.meta.get("hz")
    if not hz:
        kernel.unseen.append("HZ is unknown: taken as 250")
    loads = Loads.of(trace)
    tally, forks = _Tally(trace.topology, kernel.policy), _Tally(trace.topology, kernel.policy, loads)
    switches = trace.array("switches", ["ts", "cpu", "prev_pid", "next_pid"]) if trace.has("switches") else None
    migrations = trace.array("migrations", ["ts", "orig_cpu", "dest_cpu"]) if trace.has("migrations") else None
    calls = Calls(trace) if trace.meta.get("tier") == "deep" else None
    for wakeups, numbers in _chunks(trace):
        if switches is not None:
            mark_flickers(wakeups, switches, migrations, trace.topology)
        results = replay(wakeups, trace.topology, kernel.policy, hz or 250, loads)
        slow = np.isin(wakeups["outcome"], (Outcome.FORK, Outcome.EXEC))
        for part, rows in ((tally, ~slow), (forks, slow)):
            part.add(wakeups[rows], results[rows], numbers[rows])
        if calls is not None:
            same = same_calls(wakeups, results, calls, trace.topology, kernel.policy, hz or 250, loads)
            tally.add_order(same[~slow], numbers[~slow])
            forks.add_order(same[slow], numbers[slow])
    flips = trace.array("wakeups", [*COLUMNS, "ts_exit"])
    inside = _inside(trace, flips)
    windows = trace.loss("wakeups")[["start", "end"]].itertuples(index=False, name=None)
    return Validation(
        **vars(tally.agreement()),
        kernel=kernel,
        given=policy is not None,
        clean_share=trace.clean_share(),
        affine=tally.affine,
        not_placed=tally.not_placed,
        ends=int(np.count_nonzero(~inside)),
        flips=check_flips(flips[inside], hz or 250, windows),
        forks=forks.agreement(),
    )


def _inside(trace: Trace, wakeups: Array) -> Array:
    """Which wakeups began and ended while every probe was attached."""
    begin, end = trace.meta.get("attached_ts", 0), trace.meta.get("detach_ts", 2**63)
    inside: Array = (wakeups["ts"] >= begin) & (wakeups["ts_exit"] <= end)
    return inside


def _chunks(trace: Trace) -> Iterator[tuple[Array, Array]]:
    """Wakeups inside, a piece at a time, and their row numbers."""
    first = 0
    for wakeups in trace.chunks("wakeups"):
        rows = np.flatnonzero(_inside(trace, wakeups))
        yield wakeups[rows], first + rows
        first += len(wakeups)


def _dicts(shares: dict[str, Share]) -> dict[str, dict[str, Any]]:
    return {name: share.to_dict() for name, share in shares.items()}


class _Tally:
    """Sums over the pieces of a trace."""

    def __init__(self, topology: Topology, policy: Policy, loads: Loads = NONE) -> None:
        self.far = distance.matrix(topology)
        self.policy = policy
        self.loads = loads
        self.certainty: dict[str, Share] = {}
        self.path: dict[str, Share] = {}
        self.distance: dict[str, Share] = {}
        self.affine: dict[str, Share] = {}
        self.order = Share()
        self.out_of_order: list[int] = []
        self.doubts: dict[str, int] = {}
        self.impossible = 0
        self.cpu_unknown = 0
        self.not_placed: dict[str, int] = {}
        self.causes: dict[str, int] = {}
        self.worst: list[tuple[tuple[int, int], dict[str, Any]]] = []

    def agreement(self) -> Agreement:
        """What was added, in all."""
        return Agreement(
            certainty={c.name: self.certainty.get(c.name, Share()) for c in Certainty if c != Certainty.NOT_PLACED},
            path=self.path,
            distance=self.distance,
            order=self.order,
            out_of_order=self.out_of_order,
            doubts=self.doubts,
            impossible=self.impossible,
            cpu_unknown=self.cpu_unknown,
            causes=self.causes,
            disagreements=[entry for _, entry in self.worst],
        )

    def add(self, wakeups: Array, results: Array, numbers: Array) -> None:
        """Add replayed wakeups, with their row numbers."""
        self._count_not_placed(wakeups["outcome"])
        placed = results["certainty"] != Certainty.NOT_PLACED
        known = wakeups["chosen_cpu"] >= 0
        self.cpu_unknown += int(np.count_nonzero(placed & ~known))
        placed = np.flatnonzero(placed & known)
        wakeups, results = wakeups[placed], results[placed]
        agree = results["cpu"] == wakeups["chosen_cpu"]
        moved = self.far[wakeups["prev_cpu"], wakeups["chosen_cpu"]]
        undecidable = results["certainty"] == Certainty.UNDECIDABLE
        path = np.where(undecidable, len(Path), results["path"])
        self._count(self.certainty, [c.name for c in Certainty], results["certainty"], agree)
        self._count(self.path, [p.name for p in Path] + ["UNDECIDABLE"], path, agree)
        self._count(self.distance, [d.name for d in distance.Distance], moved, agree)
        self._count_affine(wakeups, results)
        for doubt in Doubt:
            missed = int(np.count_nonzero(results["doubt"][undecidable] & doubt.value))
            if missed:
                self.doubts[doubt.name or ""] = self.doubts.get(doubt.name or "", 0) + missed
        self.impossible += int(np.count_nonzero(results["possible"] == 0))
        self._count_causes(results[results["possible"] == 0])
        self._keep_worst(wakeups, results, np.flatnonzero(results["possible"] == 0), numbers[placed])

    def add_order(self, verdicts: Array, numbers: Array) -> None:
        """Add what same_calls says of replayed wakeups."""
        self.order.decisions += int(np.count_nonzero(verdicts >= 0))
        self.order.agree += int(np.count_nonzero(verdicts == 1))
        self.out_of_order = [*self.out_of_order, *numbers[verdicts == 0].tolist()][:WORST]

    def _count(self, shares: dict[str, Share], names: list[str], of: Array, agree: Array) -> None:
        decisions = np.bincount(of, minlength=len(names))
        agreed = np.bincount(of[agree], minlength=len(names))
        for name, n, k in zip(names, decisions, agreed, strict=True):
            if n:
                share = shares.setdefault(name, Share())
                share.decisions += int(n)
                share.agree += int(k)

    def _count_not_placed(self, outcomes: Array) -> None:
        for outcome, n in zip(*np.unique(outcomes, return_counts=True), strict=True):
            if outcome == Outcome.PLACED:
                continue
            name = Outcome(outcome).name
            self.not_placed[name] = self.not_placed.get(name, 0) + int(n)

    def _count_affine(self, wakeups: Array, results: Array) -> None:
        """wake_affine's verdict against nr_wakeups_affine_attempts and nr_wakeups_affine, where they were counted.

        Only of exact decisions: those whose inputs did not change meanwhile, as far as was seen.
        """
        counted = wakeups["affine_attempts"] >= 0
        sure = counted & (results["certainty"] == Certainty.EXACT) & (results["doubt"] & _WEIGHING.value == 0)
        wakeups, results = wakeups[sure], results[sure]
        # Patches that decide at wake_affine's beginning return before it counts.
        attempted = (results["affine"] >= Affine.THIS_IDLE) & (results["affine"] <= Affine.UNDECIDED)
        if self.policy.affine_count == AffineCount.PICKED:
            counted = attempted & (results["affine"] != Affine.WEIGHT_PREV) & (results["affine"] != Affine.UNDECIDED)
        else:
            counted = attempted & (results["target"] == wakeups["cpu"])
        zero = np.zeros(len(results), np.int8)
        self._count(self.affine, ["attempts"], zero, wakeups["affine_attempts"] == attempted)
        self._count(self.affine, ["moves"], zero, wakeups["affine_moves"] == counted)

    def _count_causes(self, wrong: Array) -> None:
        """By what they looked at and what changed meanwhile; "" counts those where nothing did."""
        for changed, n in zip(*np.unique(wrong["changed"], return_counts=True), strict=True):
            cause = " ".join(c.name or "" for c in Change if c.value & changed)
            self.causes[cause] = self.causes.get(cause, 0) + int(n)

    def _keep_worst(self, wakeups: Array, results: Array, wrong: Array, numbers: Array) -> None:
        """Certain disagreements before raced ones before undecidable ones, the farther from the kernel's CPU first."""
        far = self.far[results["cpu"][wrong], wakeups["chosen_cpu"][wrong]]
        order = np.lexsort((-far.astype(int), results["certainty"][wrong]))[:WORST]
        for i in order:
            row, result = wakeups[wrong[i]], results[wrong[i]]
            rank = (int(result["certainty"]), -int(far[i]))
            entry = _entry(row, result, int(numbers[wrong[i]]))
            loads, first, last = self.loads.find(wakeups[wrong[i] : wrong[i] + 1])
            if first[0] < last[0]:
                entry["loads"] = [dict(zip(LOADS, r.tolist(), strict=True)) for r in loads[first[0] : last[0]]]
            self.worst.append((rank, entry))
        self.worst = sorted(self.worst, key=lambda entry: entry[0])[:WORST]


def _entry(row: Any, result: Any, number: int) -> dict[str, Any]:
    inputs = {c.name: row[c.name].tolist() if c.dtype == MASK else row[c.name].item() for c in WAKEUPS}
    model = {
        "cpu": int(result["cpu"]),
        "path": Path(result["path"]).name,
        "affine": Affine(result["affine"]).name,
        "wide": int(result["wide"]),
        "target": int(result["target"]),
        "certainty": Certainty(result["certainty"]).name,
        "doubt": [d.name for d in Doubt if d.value & result["doubt"]],
        "changed": [c.name for c in Change if c.value & result["changed"]],
    }
    return {"wakeup": number, "model": model, "kernel_cpu": int(row["chosen_cpu"]), "inputs": inputs}
