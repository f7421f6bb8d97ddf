# SPDX-License-Identifier: GPL-2.0-only
"""Replay: certainty, unknown facts, and what must hold for any input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wakescope.model.affine import Affine
from wakescope.model.compiled import plain
from wakescope.model.idle import Path
from wakescope.model.kernels import kernel
from wakescope.model.loads import NONE
from wakescope.model.policy import RecentUsed
from wakescope.model.recent import AS_RECORDED
from wakescope.model.replay import RESULT, Certainty, _replay, replay
from wakescope.model.topo import groups, machine
from wakescope.model.wakeup import Doubt, as_ints, scratch
from wakescope.schema import NEVER, NEVER64, Outcome
from wakescope.tests.maketrace import topology

from .decisions import BOX, HZ, SYNC, decide, decision, random_decisions
from .test_idle import clusters

RELEASES = ("5.10", "5.15.0", "5.15", "6.1.4", "6.1", "6.6.9", "6.12.8", "6.12", "7.3")
MACHINES = {
    "box": BOX,
    "llcs": topology(nodes=2, llcs=2, cores=2),
    "far": topology(nodes=2, cores=2, threads=2, affine_nodes=False),
    "clusters": clusters(),
    "wide": topology(nodes=2, cores=20, threads=2),
}
SEEDS = st.integers(0, 2**32 - 1)


def allowed(rows, cpus):
    return (rows["allowed"][np.arange(len(rows)), cpus // 64] >> (cpus % 64).astype(np.uint64) & np.uint64(1)) == 1


@given(seed=SEEDS, release=st.sampled_from(RELEASES), name=st.sampled_from(sorted(MACHINES)))
@settings(max_examples=40, deadline=None)
def test_numba_and_plain_python_agree(seed, release, name):
    place, policy = MACHINES[name], kernel(release)
    rows = random_decisions(seed, place, 60, unknown=0.05)
    plainly = np.zeros(len(rows), RESULT)
    plain(_replay)(
        rows, NONE.find(rows), machine(place), groups(place), as_ints(policy), HZ, AS_RECORDED, scratch(place), plainly
    )
    assert (replay(rows, place, policy, HZ) == plainly).all()


@given(seed=SEEDS, release=st.sampled_from(RELEASES), name=st.sampled_from(sorted(MACHINES)))
@settings(max_examples=60, deadline=None)
def test_chosen_cpu_is_allowed_if_prev_is(seed, release, name):
    place, policy = MACHINES[name], kernel(release)
    rows = random_decisions(seed, place, 500)
    result = replay(rows, place, policy, HZ)
    decided = (result["certainty"] != Certainty.UNDECIDABLE) & allowed(rows, rows["prev_cpu"])
    if policy.recent_used == RecentUsed.PREV_TESTED:  # which may return a disallowed CPU: select_fallback_rq mends it
        decided &= result["path"] != Path.RECENT
    assert decided.any()
    assert allowed(rows[decided], result["cpu"][decided]).all()


@given(seed=SEEDS, release=st.sampled_from(RELEASES))
@settings(max_examples=40, deadline=None)
def test_renaming_the_threads_of_a_core_changes_only_which_thread(seed, release):
    """CPU c becomes c ^ 1 everywhere: the verdicts stay, and so does each check that looks at one CPU."""
    rows = random_decisions(seed, BOX, 500)
    for name in ("this_nr_idle_scan", "prev_nr_idle_scan"):
        rows[name] = 8  # a scan that is cut depends on where it starts
    renamed = rows.copy()
    for name in ("cpu", "prev_cpu", "recent_used_cpu", "chosen_cpu"):
        renamed[name] ^= 1
    for name in ("idle", "idle_exit", "sched_idle", "sched_idle_exit", "allowed"):
        even = rows[name] & np.uint64(0x5555555555555555)
        renamed[name] = even << np.uint64(1) | rows[name] >> np.uint64(1) & np.uint64(0x5555555555555555)
    policy = kernel(release) | {"sis_prop": 0}
    one, other = replay(rows, BOX, policy, HZ), replay(renamed, BOX, policy, HZ)
    for verdict in ("wide", "affine", "certainty"):
        assert (one[verdict] == other[verdict]).all()
    assert (one["target"] ^ 1 == other["target"]).all()
    single = np.isin(one["path"], (Path.CURRENT_CPU, Path.TARGET, Path.PREV, Path.KTHREAD, Path.RECENT))
    assert (one["path"][single] == other["path"][single]).all()
    assert (one["cpu"][single] ^ 1 == other["cpu"][single]).all()
    assert ((one["path"] == Path.FALLBACK_TARGET) == (other["path"] == Path.FALLBACK_TARGET)).all()


@given(seed=SEEDS, release=st.sampled_from(RELEASES))
@settings(max_examples=30, deadline=None)
def test_a_decided_unknown_agrees_with_what_it_might_have_been(seed, release):
    """Forget facts of decisions whose answer is known: what is still decided must be that answer."""
    whole = random_decisions(seed, BOX, 300)
    whole["wake_flags"] &= ~np.uint32(0x40)  # WF_CURRENT_CPU is not asked about where flags are unknown
    policy = kernel(release)
    truth = replay(whole, BOX, policy, HZ)
    rng, partly = np.random.default_rng(seed), whole.copy()
    forget = (
        *(("wake_flags", NEVER), ("waker_flips", NEVER), ("this_nr_running", NEVER), ("this_load", NEVER64)),
        *(("prev_nr_idle_scan", -1), ("this_has_idle_cores", -1), ("context", 4), ("this_avg_idle", NEVER64)),
    )
    for name, value in forget:
        partly[name][rng.random(len(partly)) < 0.3] = value
    found = replay(partly, BOX, policy, HZ)
    decided = (found["certainty"] != Certainty.UNDECIDABLE) & (truth["certainty"] != Certainty.UNDECIDABLE)
    assert (found["cpu"][decided] == truth["cpu"][decided]).all()
    whole["chosen_cpu"] = partly["chosen_cpu"] = truth["cpu"]
    assert (replay(partly, BOX, policy, HZ)["possible"][truth["cpu"] >= 0] == 1).all()


NEW = kernel("6.12")


def test_sync_unknown_is_decided_where_it_does_not_matter():
    result = decide(NEW, wake_flags=NEVER, idle=[0, 2])
    assert (result["cpu"], result["certainty"], result["doubt"]) == (2, Certainty.EXACT, Doubt.SYNC)
    alone = {"this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1}
    result = decide(NEW, wake_flags=NEVER, chosen=0, **alone)
    assert (result["cpu"], result["certainty"], result["possible"]) == (-1, Certainty.UNDECIDABLE, 1)
    assert decide(NEW, wake_flags=NEVER, chosen=7, **alone)["possible"] == 0


def test_questions_that_only_some_answers_raise():
    """Unknown flips raise the question of sync only if not wide, and that the one of the waker's load only if sync."""
    result = decide(NEW, waker_flips=NEVER, wakee_flips=5, wake_flags=NEVER, waker_h_load=NEVER64, chosen=0)
    assert Doubt(int(result["doubt"])) == Doubt.WIDE | Doubt.SYNC | Doubt.WEIGHT
    assert (result["certainty"], result["possible"]) == (Certainty.UNDECIDABLE, 1)


def test_without_idle_words_only_current_cpu_is_decided():
    assert decide(NEW, has_masks=0)["certainty"] == Certainty.UNDECIDABLE
    assert decide(NEW, has_masks=0, wake_flags=0x48)["certainty"] == Certainty.EXACT


ALONE = {"this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1}
WIDE = {"waker_flips": 1000, "wakee_flips": 10}
RACES = [
    # what is looked at, a change of it at exit
    ({"idle": [2]}, {"idle_exit": []}),
    ({}, {"idle_exit": [3]}),
    ({"sched_idle": [2]}, {"sched_idle_exit": []}),
    ({}, {"this_load_exit": 1999}),
    ({}, {"prev_load_exit": 2001}),
    ({}, {"jiffies_exit": 1_000_001}),  # h_load is made anew
    ({"wake_flags": SYNC, **ALONE}, {"this_nr_running_exit": 2}),
    (WIDE, {"prev_nr_idle_scan_exit": 3}),
    (WIDE, {"prev_has_idle_cores_exit": 1}),
    ({"prev": 0, "waker_decay_ts": 999_750}, {"jiffies_exit": 1_000_001}),  # flips are due to be halved just then
]


@pytest.mark.parametrize(("what", "change"), RACES)
def test_races(what, change):
    assert decide(NEW, **what)["certainty"] == Certainty.EXACT
    assert decide(NEW, **what | change)["certainty"] == Certainty.RACED


NOT_RACES = [
    ({"idle": [2]}, {"idle_exit": [2, 7]}),  # nobody looked at CPU 7
    ({"idle": [0, 2]}, {"this_load_exit": 0}),  # nor at the loads
    (WIDE, {"jiffies_exit": 1_000_001}),
    ({"idle": [2], "has_masks": 2, "chosen": 2}, {"idle_exit": []}),  # seen when the wakee was already there
    (WIDE | {"prev_has_idle_cores": 1}, {"prev_has_idle_cores_exit": 0}),  # the search itself clears it
    ({"prev": 0, "waker_decay_ts": 999_000}, {"jiffies_exit": 1_000_001}),  # due for long
]


@pytest.mark.parametrize(("what", "change"), NOT_RACES)
def test_changes_nobody_looked_at_are_no_races(what, change):
    assert decide(NEW, **what | change)["certainty"] == Certainty.EXACT


@pytest.mark.parametrize("outcome", sorted({*Outcome} - {Outcome.PLACED, Outcome.FORK, Outcome.EXEC}))
def test_other_outcomes_are_left_alone(outcome):
    row = decision()
    row["outcome"] = outcome
    result = replay(row, BOX, NEW, HZ)[0]
    assert (result["certainty"], result["cpu"], result["path"]) == (Certainty.NOT_PLACED, -1, Path.NONE)
    assert (result["affine"], result["wide"], result["possible"]) == (Affine.NONE, -1, 0)


def test_an_empty_trace():
    assert len(replay(decision()[:0], BOX, NEW, HZ)) == 0
