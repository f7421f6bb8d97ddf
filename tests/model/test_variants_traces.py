# SPDX-License-Identifier: GPL-2.0-only
"""On the traces of the corpus, and on random decisions: each patch moves what it should and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from wakescope.analysis.stacking import Stacking, df_stacked
from wakescope.model import replay as replaying
from wakescope.model.affine import Affine
from wakescope.model.captured import captured
from wakescope.model.compiled import plain
from wakescope.model.contrast import contrast
from wakescope.model.explain import Explanation
from wakescope.model.idle import Path as By
from wakescope.model.idlest import Rule
from wakescope.model.kernels import kernel, policy_for
from wakescope.model.loads import NONE, Loads
from wakescope.model.numa_retry import NumaHistory
from wakescope.model.policy import SchedIdle
from wakescope.model.replay import RESULT, Certainty, replay
from wakescope.model.topo import groups, machine
from wakescope.model.variants import PATCHES, RELEASES, patched
from wakescope.model.variants_flips import derive_flips, same_flips
from wakescope.model.variants_recent import RecentHistory, derive_recent, same_recent
from wakescope.model.wakeup import as_ints, scratch
from wakescope.schema import Outcome
from wakescope.trace import Trace

from .decisions import BOX, HZ, random_decisions

STAY, REVERT = "numa-idlest-stay-local", "revert-numa-idlest-stay-local"
CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.wake"))
SOURCES = ["random", *(path.name for path in CORPUS)]
BASES = ("own", "4.3", "4.15", "5.10")


class Side(NamedTuple):
    """One policy on one source: the wakeups, what it makes of them, and who shares a cache."""

    wakeups: Any
    results: Any
    shares: Any


class Source(NamedTuple):
    wakeups: Any
    topology: Any
    own: Any
    hz: int
    trace: Trace | None


@cache
def source(name: str) -> Source:
    if name == "random":
        return Source(random_decisions(3, BOX, 4000, 0.02), BOX, kernel("6.12"), HZ, None)
    trace = Trace.open(Path(__file__).parents[1] / "corpus" / name)
    return Source(trace.array("wakeups"), trace.topology, policy_for(trace.meta).policy, trace.meta["hz"], trace)


@cache
def left(name: str, base: str) -> RecentHistory:
    of = source(name)
    assert of.trace is not None
    return derive_recent(of.trace, kernel(base), of.own, of.hz)


@cache
def side(name: str, base: str, patch: str) -> Side:
    of = source(name)
    policy = patched(of.own if base == "own" else kernel(base), [patch] if patch else [])
    reader = captured(policy, of.own)
    rows = of.wakeups
    if of.trace and not same_flips(of.trace, policy, of.own):
        rows = derive_flips(of.trace, policy, of.hz).into(rows, 0)
    if of.trace and not same_recent(policy, of.own):
        rows = left(name, base).into(rows, 0)
    loads = Loads.of(of.trace) if of.trace else NONE
    results = replay(reader.rows(rows), of.topology, reader.policy, of.hz, loads)
    llc = of.topology.by_cpu("llc")
    return Side(rows, results, llc[rows["cpu"]] == llc[rows["prev_cpu"]])


def both(name: str, base: str, patch: str) -> tuple[Side, Side, Any]:
    """Stock and patched, and which decisions both decide on different CPUs. Skips where the patch makes no sense."""
    of = source(name)
    if PATCHES[patch].refusal(of.own if base == "own" else kernel(base)):
        pytest.skip(f"{patch} does not apply to {base}")
    stock, other = side(name, base, ""), side(name, base, patch)
    decided = [s.results["certainty"] <= Certainty.RACED for s in (stock, other)]
    moved = decided[0] & decided[1] & (stock.results["cpu"] != other.results["cpu"])
    return stock, other, moved


def on_every_source(test: Callable[..., None]) -> Callable[..., None]:
    by_base = pytest.mark.parametrize("base", BASES)(test)
    return pytest.mark.parametrize("name", SOURCES)(by_base)


def pulls(s: Side) -> Any:
    """Decisions where wake_affine had the search begin on the waker's CPU (if what is unknown is answered with no)."""
    asked = s.results["affine"] >= Affine.THIS_IDLE
    return asked & (s.results["target"] == s.wakeups["cpu"])


def sure(*sides: Side) -> Any:
    """Decisions for which every fact is known."""
    return np.logical_and.reduce([s.results["doubt"] == 0 for s in sides])


@on_every_source
def test_skip_affine_moves_only_what_shares_a_cache(name, base):
    stock, other, moved = both(name, base, "skip-affine-core-siblings")
    assert not moved[~stock.shares].any()
    assert not moved[pulls(stock) & sure(stock, other)].any()  # these begin at the waker's CPU already
    assert (stock.results["wide"] == other.results["wide"]).all()
    if (name, base) == ("random", "own"):
        assert moved.any()


@on_every_source
def test_nak_affine_moves_only_what_was_pulled(name, base):
    stock, other, moved = both(name, base, "nak-affine")
    assert not moved[~pulls(stock) & sure(stock)].any()
    assert not pulls(other).any()
    if (name, base) == ("random", "own"):
        assert moved.any()


@on_every_source
def test_nak_affine_shared_moves_only_what_was_pulled_within_a_cache(name, base):
    stock, other, moved = both(name, base, "nak-affine-shared")
    assert not moved[~(pulls(stock) & stock.shares) & sure(stock)].any()
    assert not moved[~stock.shares].any()
    assert not (pulls(other) & other.shares).any()


@pytest.mark.parametrize(
    "patch",
    ["llc-size-cores", "couple-wakee-flips", "twiddle", "couple-heavy-wakers", "wake-wide-asymmetric"],
)
@on_every_source
def test_flip_patches_move_only_where_wake_wide_says_otherwise(name, base, patch):
    stock, other, moved = both(name, base, patch)
    assert not moved[(stock.results["wide"] == other.results["wide"]) & sure(stock, other)].any()


@on_every_source
def test_a_smaller_factor_only_makes_more_wide(name, base):
    stock, other, _ = both(name, base, "llc-size-cores")
    assert not ((stock.results["wide"] == 1) & (other.results["wide"] == 0)).any()


@on_every_source
def test_the_asymmetric_rule_only_makes_fewer_wide(name, base):
    stock, other, _ = both(name, base, "wake-wide-asymmetric")
    assert not ((stock.results["wide"] == 0) & (other.results["wide"] == 1)).any()


@pytest.mark.parametrize(
    "patch",
    [
        "want-affine-rework",
        "prefer-idle-cpu",
        "numa-idlest-stay-local",
        "numa-delay-retry",
        "numa-delay-retry-righted",
        "numa-delay-retry-merged",
        "numa-delay-retry-merged-righted",
        "init-numa-migrate-retry",
    ],
)
@on_every_source
def test_patches_that_change_no_wakeup_by_default(name, base, patch):
    stock, other, _ = both(name, base, patch)
    for field in RESULT.names:
        same = stock.results[field] == other.results[field]
        asked = other.results["wide"] >= 0  # want-affine-rework asks less often, and so doubts less
        assert (same | ~asked).all() if field in ("wide", "doubt") else same.all(), field


def balancing(name: str, base: str, patch: str) -> tuple[Side, Any, Any]:
    """Stock, its policy, and the results of the patch where every domain has SD_BALANCE_WAKE."""
    of, stock = source(name), side(name, base, "")
    policy = of.own if base == "own" else kernel(base)
    reader = captured(patched(policy, ["balance-wake", patch]), of.own)
    return stock, policy, replay(reader.rows(stock.wakeups), of.topology, reader.policy, of.hz)


@on_every_source
def test_want_affine_rework_keeps_wakeups_off_the_slow_path(name, base):
    stock, _, results = balancing(name, base, "want-affine-rework")
    wakeups = ~np.isin(stock.wakeups["outcome"], (Outcome.FORK, Outcome.EXEC))
    for field in ("cpu", "path", "affine", "certainty"):
        assert (results[field] == stock.results[field])[wakeups].all()


@on_every_source
def test_prefer_idle_cpu_only_sends_away_what_would_have_been_stacked(name, base):
    """Where domains have SD_BALANCE_WAKE: whoever finds an idle CPU goes there, as if they had not."""
    stock, policy, results = balancing(name, base, "prefer-idle-cpu")
    known = (stock.results["certainty"] == Certainty.EXACT) & (stock.wakeups["outcome"] == Outcome.PLACED)
    slow = known & (results["path"] == By.SLOW)
    stays = known & ~slow & (results["certainty"] == Certainty.EXACT)
    assert (results["cpu"] == stock.results["cpu"])[stays].all()
    cpu = stock.results["cpu"].astype(np.int64)[slow]
    usable = stock.wakeups["idle"][slow]
    if policy.sched_idle != SchedIdle.NOBODY:
        usable = usable | stock.wakeups["sched_idle"][slow]
    busy = usable[np.arange(len(cpu)), cpu // 64] >> (cpu % 64).astype(np.uint64) & np.uint64(1) == 0
    assert busy.all()


@on_every_source
def test_wake_wide_idle_only_takes_busy_wide_wakeups_away(name, base):
    stock, other, moved = both(name, base, "wake-wide-idle")
    assert not moved.any()
    gone = (stock.results["certainty"] <= Certainty.RACED) & (other.results["certainty"] == Certainty.UNDECIDABLE)
    known = gone & (stock.results["doubt"] == 0)
    assert (other.results["path"][known] == By.SLOW).all()
    assert (stock.results["wide"][known] == 1).all()
    assert (stock.results["path"][known] == By.FALLBACK_TARGET).all()


@pytest.mark.parametrize("release", RELEASES)
def test_compiled_and_plain_agree(release):
    rows, policy = random_decisions(7, BOX, 40, 0.05), kernel(release)
    variants = [policy] + [policy | patch.edit for patch in PATCHES.values() if patch.refusal(policy) is None]
    for variant in variants:
        reader = captured(variant, kernel("6.12"))
        seen = reader.rows(rows)
        compiled = replay(seen, BOX, reader.policy, HZ)
        slow = np.zeros(len(rows), RESULT)
        with np.errstate(over="ignore"):
            plain(replaying._replay)(
                seen,
                NONE.find(seen),
                machine(BOX),
                groups(BOX),
                as_ints(reader.policy),
                HZ,
                replaying.AS_RECORDED,
                scratch(BOX),
                slow,
            )
        assert (compiled == slow).all()


@pytest.mark.parametrize("name", [path.name for path in CORPUS])
def test_the_kernels_own_history_is_followed(name):
    """Stock flips and NUMA deadlines replayed over the trace are the kernel's."""
    of = source(name)
    assert of.trace is not None
    history = derive_flips(of.trace, of.own, of.hz)
    # Unseen: wakeups before all probes are attached, and from an interrupt within another wakeup.
    assert history.unexplained <= 5
    if of.trace.has("numa"):
        faults = NumaHistory(of.trace, of.hz)
        found = faults.replay(of.own, side(name, "own", "").results)
        assert found.as_kernel >= 0.99 * len(faults.faults)
        for patch in ("numa-delay-retry", "numa-delay-retry-merged"):
            stopped = faults.replay(patched(of.own, [patch]), side(name, "own", "").results)
            assert stopped.tasks["attempts"].sum() == 0


@pytest.mark.parametrize("name", [path.name for path in CORPUS])
def test_own_policy_is_the_kernel(name):
    """Contrast's marks of the kernel and of its own policy are the same where decisions are certain and agree."""
    trace = source(name).trace
    assert trace is not None
    found = contrast(trace, [("own", source(name).own), ("again", source(name).own)])
    (comparison,) = found.comparisons
    assert comparison.moved.sum() == 0
    own, real = found.policies[0].decisions, found.kernel.decisions
    same = own["cpu"] == real["cpu"]
    assert same.mean() > 0.99
    for mark in ("on_waker", "stacked", "stacked_llc", "cross_node"):
        assert (own[mark][same] == real[mark][same]).all()
    at = pd.Index(df_stacked(trace)["row"]).get_indexer(found.decisions["row"])
    wakeups = (at >= 0) & (found.decisions["kind"] == "wakeup")
    reported = df_stacked(trace)["stacking"].to_numpy()[at][wakeups]
    assert (real["stacked_llc"][wakeups] == (reported == Stacking.LLC)).all()
    assert (real["stacked"][wakeups] == np.isin(reported, (Stacking.LLC, Stacking.MACHINE))).all()


FORKS = [path.name for path in CORPUS if path.stem.endswith("-forks")]


def steps(name: str, row: int, policy: Any) -> list[tuple[int, ...]]:
    """(CPU, level, group, rule, CPU found) of each domain that find_idlest_cpu comes to."""
    of = source(name)
    assert of.trace is not None
    w = Explanation(of.wakeups[row], of.topology, policy, of.hz, loads_of(name)).w
    return [tuple(step) for step in w.steps[: w.nr_steps].tolist()]


@cache
def loads_of(name: str) -> Loads:
    return Loads.of(source(name).trace)


@pytest.mark.parametrize("name", FORKS)
def test_stay_local_keeps_forks_on_their_node_and_changes_nothing_else(name):
    """Both ways round: taken out, forks leave that its rule had kept; put in again, it keeps just these."""
    of = source(name)
    reverted = patched(of.own, [REVERT])
    assert patched(reverted, [STAY]) == of.own
    _, _, moved = both(name, "own", REVERT)
    rows = of.wakeups
    assert np.isin(rows["outcome"][moved], (Outcome.FORK, Outcome.EXEC)).all()
    for row in np.flatnonzero(moved):
        kept, left = steps(name, row, of.own), steps(name, row, reverted)
        apart = next(i for i, (a, b) in enumerate(zip(kept, left, strict=False)) if a != b)
        assert (kept[apart][3], left[apart][3]) == (Rule.NUMA_LOAD, Rule.OTHER_LOAD)
        assert "NUMA" in of.topology.chain(kept[apart][0])[kept[apart][1]].flags
    decided = side(name, "own", "").results["certainty"] <= Certainty.RACED
    slow = decided & ~moved & np.isin(rows["outcome"], (Outcome.FORK, Outcome.EXEC))
    for row in np.flatnonzero(slow)[:100]:
        rules = [step[3] for step in steps(name, row, of.own)]
        assert Rule.NUMA_LOAD not in rules or steps(name, row, reverted)[-1][4] == steps(name, row, of.own)[-1][4]


def test_stay_local_keeps_some_fork_of_the_corpus():
    assert sum(both(name, "own", REVERT)[2].sum() for name in FORKS) > 0


@pytest.mark.parametrize("name", FORKS)
def test_contrast_counts_the_forks_it_moves(name):
    of = source(name)
    assert of.trace is not None
    found = contrast(of.trace, [("own", of.own), ("without", patched(of.own, [REVERT]))]).to_json()
    moved = {row["kind"]: row["moved"] for row in found["comparisons"][0]["by_kind"]}
    assert moved["wakeup"] == 0
    assert moved["fork"] + moved["exec"] == both(name, "own", REVERT)[2].sum()
    assert found["not_replayed"]["forks"] == found["not_replayed"]["execs"] == 0
