# SPDX-License-Identifier: GPL-2.0-only
"""find_idlest_cpu, stage by stage, against cases that follow from the kernels' rules.

The machine has two nodes of two cores of two threads: CPUs 0-3 and 4-7. The task is forked on CPU 0, which runs its
parent. Unless a case says otherwise all other CPUs are idle and CPU 7 became idle last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wakescope.model.compiled import plain
from wakescope.model.idle import Path
from wakescope.model.idlest import (
    GroupType,
    Stats,
    adjust_numa_imbalance,
    group_classify,
    update_pick_idlest,
)
from wakescope.model.kernels import kernel
from wakescope.model.loads import Loads
from wakescope.model.policy import NumaSpare
from wakescope.model.recent import AS_RECORDED
from wakescope.model.replay import RESULT, Certainty, _replay, replay
from wakescope.model.topo import groups
from wakescope.model.topo import machine as machine_of
from wakescope.model.variants import patched
from wakescope.model.wakeup import Doubt, as_ints, scratch
from wakescope.schema import NEVER, Load, Outcome, Running
from wakescope.tests.maketrace import mask, records, topology
from wakescope.tests.model.decisions import BOX, HZ, busy, decision, place

V510, V612, V73 = kernel("5.10"), kernel("6.12"), kernel("7.3")
UMA = topology(nodes=1, cores=2, threads=2)
PARENT = {0: busy()}


def with_imb(imb_numa_nr: int) -> Any:
    return replace(BOX, domains=[replace(sd, imb_numa_nr=imb_numa_nr) for sd in BOX.domains])


# what is found -> CPU, path
SPARE = [
    # imb_numa_nr 1: two tasks would be too many for one node, and the other has more idle CPUs
    (V612, BOX, PARENT, 7, Path.IDLEST_IDLE),
    # imb_numa_nr 2: they are not, and the idle CPUs differ by one: another core of this node
    (V612, with_imb(2), PARENT, 3, Path.IDLEST_IDLE),
    # they differ by more than NUMA_IMBALANCE_MIN, though the tasks are few
    (V612, with_imb(4), {cpu: busy() for cpu in range(3)}, 7, Path.IDLEST_IDLE),
    # until 5.10 any idle CPU keeps it on its node
    (V510, BOX, PARENT, 3, Path.IDLEST_IDLE),
    (V510, BOX, {cpu: busy() for cpu in range(3)}, 3, Path.IDLEST_IDLE),
    (V510, BOX, {cpu: busy() for cpu in range(4)}, 7, Path.IDLEST_IDLE),
    # one node only: the core with more idle CPUs, then its thread that became idle last
    (V612, UMA, PARENT, 3, Path.IDLEST_IDLE),
    # as many idle CPUs everywhere: stay on the core, and there the other thread has one more
    (V612, UMA, {0: busy(), 2: busy()}, 1, Path.IDLEST_ONLY),
]


@pytest.mark.parametrize(("policy", "machine", "found", "cpu", "path"), SPARE)
def test_groups_with_spare_capacity(policy, machine, found, cpu, path):
    result = place(policy, found, machine)
    assert (result["cpu"], Path(result["path"]), result["certainty"]) == (cpu, path, Certainty.EXACT)


@pytest.mark.parametrize(
    ("rule", "running", "stays"),
    [
        (NumaSpare.QUARTER_SPAN, 1, True),  # 1 < 8 / 4
        (NumaSpare.QUARTER_SPAN, 2, False),
        (NumaSpare.QUARTER_GROUP, 1, False),  # 1 + 1 < 4 / 4
        (NumaSpare.IMB_NUMA_NR, 1, True),  # 1 + 1 <= 2
        (NumaSpare.IMB_NUMA_NR, 2, False),
        (NumaSpare.IDLE, 3, True),
        (NumaSpare.ADJUST, 1, True),
        (NumaSpare.ADJUST, 2, False),
    ],
)
def test_who_may_share_a_node(rule, running, stays):
    found = {cpu: busy() for cpu in range(running)}
    result = place(V612 | {"numa_spare": rule}, found, with_imb(2))
    assert (result["cpu"] < 4) == stays


def test_a_task_allowed_few_cpus_may_share_its_node_less():
    """f5b2eeb49991: imb_numa_nr is no more than the CPUs of the group that it may use."""
    found, allowed = {0: busy()}, [1, 4, 5, 6, 7]
    # alone on the group's one allowed CPU, which is idle: 0 tasks + 1 <= 1, and idle CPUs differ by 3
    assert place(V612, found, with_imb(4), allowed=allowed, wakee_nr_allowed=5)["cpu"] == 7
    one_more = {**found, 6: busy(), 7: busy()}  # they differ by 1
    assert place(V612, one_more, with_imb(4), allowed=allowed, wakee_nr_allowed=5)["cpu"] == 1
    also_busy = {**one_more, 1: busy(load=10)}  # 1 task + 1 > 1
    assert place(V612, also_busy, with_imb(4), allowed=allowed, wakee_nr_allowed=5)["cpu"] == 5


@pytest.mark.parametrize(("preferred", "cpu"), [(0, 3), (1, 7)])
def test_the_preferred_node_goes_before_idle_cpus(preferred, cpu):
    assert place(V612, PARENT, with_imb(2), wakee_preferred_nid=preferred)["cpu"] == cpu
    few = {**PARENT, 4: busy(), 5: busy()}
    assert place(V612, few, BOX, wakee_preferred_nid=preferred)["cpu"] == cpu


def test_groups_that_are_fully_busy_go_by_load():
    imbalance = 1024 * 17 // 100
    for this in range(1000, 1500, 7):
        for other in (1000, 1024, 1100):
            found = {cpu: busy(load=this if cpu < 4 else other) for cpu in range(8)}
            goes = place(V612, found)["cpu"] >= 4
            assert goes == (other + imbalance < this and 100 * this > 117 * other), (this, other)


def test_without_the_patch_a_node_is_as_any_group():
    """revert-numa-idlest-stay-local: go as soon as imbalance_pct is exceeded."""
    reverted = patched(V612, ["revert-numa-idlest-stay-local"])
    assert patched(reverted, ["numa-idlest-stay-local"]) == V612
    for load in (100, 200, 400, 1100):
        for less in range(50, load, 25):
            # util over 100 / 117 of the capacity: fully busy, however small the loads
            found = {cpu: busy(load=load if cpu < 4 else less, util=1024, runnable=1024) for cpu in range(8)}
            stock, without = place(V612, found)["cpu"], place(reverted, found)["cpu"]
            assert (without >= 4) == (100 * load > 117 * less)
            assert stock < 4 or without >= 4  # the patch only keeps
            assert stock == without or less + 174 >= load


def test_more_tasks_than_cpus_is_overloaded():
    """An overloaded node is left for one that is only fully busy, whatever their loads."""
    found = {cpu: busy(load=900, tasks=2) if cpu < 4 else busy(load=1100) for cpu in range(8)}
    assert place(V612, found)["cpu"] >= 4
    assert place(V612, {cpu: busy(load=900 if cpu < 4 else 1100) for cpu in range(8)})["cpu"] < 4


def test_within_a_group_the_least_loaded_cpu():
    found = {cpu: busy(load=2000) for cpu in range(4)} | {cpu: busy(load=1000 - cpu) for cpu in range(4, 8)}
    result = place(V612, found)
    assert (result["cpu"], Path(result["path"])) == (7, Path.IDLEST_LOAD)
    found[6]["load"] = 993  # a tie: the first
    assert place(V612, found)["cpu"] == 6


# CPUs of the other node: (exit latency, idle stamp) -> the CPU
STATES = [
    ([(NEVER, 5), (NEVER, 9), (NEVER, 7), (NEVER, 8)], 5),  # no states: idle last
    ([(10, 5), (2, 1), (10, 9), (2, 3)], 7),  # the shallowest, and of those idle last
    ([(2, 5), (NEVER, 9), (10, 20), (2, 7)], 5),  # one without a state counts by its stamp
    ([(NEVER, 0), (NEVER, 0), (NEVER, 1), (NEVER, 0)], 6),  # a stamp of 0 never wins
]


@pytest.mark.parametrize(("states", "cpu"), STATES)
def test_idle_cpus_go_by_exit_latency_and_stamp(states, cpu):
    idle = {4 + i: {"exit_latency": latency, "idle_stamp": stamp} for i, (latency, stamp) in enumerate(states)}
    assert place(V612, PARENT | idle)["cpu"] == cpu


def test_a_cpu_of_sched_idle_tasks_is_taken_at_once():
    found = {cpu: busy(load=3000 if cpu < 4 else 1100) for cpu in range(8)}
    found[5]["nr_idle"] = 1
    result = place(V612, found)
    assert (result["cpu"], Path(result["path"])) == (5, Path.IDLEST_SCHED_IDLE)
    assert place(V73, found, wakee_policy=5)["cpu"] == 4  # fd54d81c2c0e, v7.1: not by a SCHED_IDLE task


def test_an_exec_leaves_its_own_load_out():
    """It runs on CPU 0: that counts as idle, unless another task waits there."""
    own = {"own_queued": 1, "own_load": 900, "own_util": 1024, "own_runnable": 1024, "curr": Running.SELF}
    alone = {0: busy(load=900, **own)}
    result = place(V612, alone, UMA, outcome=Outcome.EXEC)
    assert (result["cpu"], Path(result["path"])) == (0, Path.STAYS)
    beside = {0: busy(load=1900, tasks=2, **own)}
    assert place(V612, beside, UMA, outcome=Outcome.EXEC)["cpu"] == 3


def test_only_the_domains_that_balance_at_fork():
    """Nodes farther than node_reclaim_distance do not; without any domain it is prev."""
    far = topology(nodes=2, cores=2, threads=2, affine_nodes=False)
    assert place(V612, PARENT, far)["cpu"] == 3
    none = replace(BOX, domains=[replace(sd, flags=["BALANCE_EXEC"]) for sd in BOX.domains])
    result = place(V612, PARENT, none, prev=2)
    assert (result["cpu"], Path(result["path"])) == (2, Path.NO_BALANCE)


def test_affinity():
    assert place(V612, PARENT, allowed=[1, 5])["cpu"] == 1  # each node has one idle CPU that counts
    assert place(V612, PARENT, allowed=[5])["cpu"] == 5
    assert place(V612, PARENT, UMA, allowed=[1])["cpu"] == 1
    outside = place(V612, {}, topology(nodes=1, cores=1, threads=2), allowed=[], prev=1)
    assert (outside["cpu"], Path(outside["path"])) == (1, Path.OUTSIDE)


@pytest.mark.parametrize(
    ("before", "since"),
    [("5.10.260", "5.10.261"), ("5.15.211", "5.15.212"), ("6.1.177", "6.1.178"), ("6.6.9", "6.6"),
     ("6.12.96", "6.12.97"), ("6.18.38", "6.18.39"), ("6.17", "7.0")],
)  # fmt: skip
def test_cpus_that_are_not_allowed_counted_until_6_19(before, since):
    """82d6e01a0699: three idle CPUs of the other node draw a task there that may not run on any of them."""
    found = {cpu: busy() for cpu in (0, 1, 2, 4)}
    spare = {"numa_spare": NumaSpare.ADJUST}
    assert place(kernel(before) | spare, found, allowed=[0, 1, 2, 3, 4])["cpu"] == 4
    assert place(kernel(since) | spare, found, allowed=[0, 1, 2, 3, 4])["cpu"] == 3


def stats(kind: GroupType = GroupType.HAS_SPARE, **more: int) -> Stats:
    made = {"known": 1, "type": kind, "util": 0, "runnable": 0, "running": 0, "idle_cpus": 0, "capacity": 4096}
    return Stats(**{**made, "weight": 4, "avg_load": 0, "changed": 0, "group_changed": 0, **more})


# capacity 4096, 4 CPUs, imbalance_pct 117: tasks, util, runnable, sgc.imbalance -> type
TYPES = [
    (3, 9000, 9000, 0, GroupType.HAS_SPARE),  # fewer tasks than CPUs, whatever they want
    (4, 3500, 4000, 0, GroupType.HAS_SPARE),  # 4096 * 100 > 3500 * 117
    (4, 3501, 4000, 0, GroupType.FULLY_BUSY),
    (4, 100, 4793, 0, GroupType.FULLY_BUSY),  # 4096 * 117 < 4793 * 100
    (4, 100, 4792, 0, GroupType.HAS_SPARE),
    (5, 3500, 4792, 0, GroupType.HAS_SPARE),  # more tasks, but they do not want it
    (5, 3501, 100, 0, GroupType.OVERLOADED),
    (5, 100, 4793, 0, GroupType.OVERLOADED),
    (3, 100, 100, 1, GroupType.IMBALANCED),
    (5, 3501, 100, 1, GroupType.OVERLOADED),
]


@pytest.mark.parametrize(("running", "util", "runnable", "imbalance", "kind"), TYPES)
@pytest.mark.parametrize("function", [group_classify, plain(group_classify)])
def test_group_classify(function, running, util, runnable, imbalance, kind):
    found = stats(running=running, util=util, runnable=runnable)
    assert function(scratch(BOX), 117, imbalance, found) == kind


@pytest.mark.parametrize(
    ("best", "other", "better"),
    [
        (stats(GroupType.OVERLOADED), stats(GroupType.FULLY_BUSY, avg_load=9999), True),
        (stats(GroupType.HAS_SPARE), stats(GroupType.IMBALANCED), False),
        (stats(GroupType.IMBALANCED), stats(GroupType.IMBALANCED), False),
        (stats(idle_cpus=2), stats(idle_cpus=3, util=9999), True),
        (stats(idle_cpus=2, util=500), stats(idle_cpus=2, util=499), True),
        (stats(idle_cpus=2, util=500), stats(idle_cpus=2, util=500), False),
        (stats(GroupType.FULLY_BUSY, avg_load=10), stats(GroupType.FULLY_BUSY, avg_load=9), True),
        (stats(GroupType.OVERLOADED, avg_load=10), stats(GroupType.OVERLOADED, avg_load=10), False),
    ],
)
def test_update_pick_idlest(best, other, better):
    assert update_pick_idlest(scratch(BOX), best, other) == better


@pytest.mark.parametrize(
    ("imbalance", "running", "imb", "result"), [(2, 4, 4, 0), (3, 4, 4, 3), (1, 5, 4, 1), (0, 1, 0, 0)]
)
def test_adjust_numa_imbalance(imbalance, running, imb, result):
    assert adjust_numa_imbalance(imbalance, running, imb) == result


@pytest.mark.parametrize(
    ("changed", "certainty"),
    [
        ({7: {"idle_stamp": 2000}}, Certainty.RACED),  # of the CPU that was taken
        ({6: busy()}, Certainty.RACED),  # began to run meanwhile
        ({7: {"load": 5}}, Certainty.EXACT),  # an idle CPU's load decides nothing
        ({1: {"util": 5}}, Certainty.EXACT),  # nor what idle groups use
        ({4: {"capacity": [1024, 2048, 4000] + [0] * 5}}, Certainty.RACED),
    ],
)
def test_what_was_looked_at_must_stay(changed, certainty):
    assert place(V612, PARENT, at_exit=changed)["certainty"] == certainty


def test_without_figures_it_is_undecidable():
    """A trace made before they were recorded, one whose CPUs are not all there, and one without rings of groups."""
    row = decision(prev=0, outcome=Outcome.FORK)
    result = replay(row, BOX, V612, HZ)[0]
    assert (result["cpu"], result["certainty"], result["doubt"]) == (-1, Certainty.UNDECIDABLE, Doubt.GROUPS)
    assert result["possible"]
    without = replace(BOX, groups=[], domains=[replace(sd, ring=[]) for sd in BOX.domains])
    loads = Loads(records("loads", [{"asked_cpu": cpu, "seq": cpu} for cpu in range(7)]), [])
    for machine in (without, BOX):
        assert replay(row, machine, V612, HZ, loads)[0]["certainty"] == Certainty.UNDECIDABLE
    assert place(kernel("4.15"), PARENT)["certainty"] == Certainty.UNDECIDABLE


def test_figures_that_may_be_lost_are_not_used():
    rows = records("loads", [{"asked_cpu": cpu, "seq": cpu} for cpu in range(8)])
    row = decision(prev=0, outcome=Outcome.FORK, ts_exit=10)
    assert Loads(rows, []).find(row)[2][0] == 8
    assert Loads(rows, [(5, 6)]).find(row)[2][0] == 0


def random_forks(seed: int, n: int) -> tuple[Any, Loads]:
    """n forks and execs with random figures, some of which change."""
    rng = np.random.default_rng(seed)
    rows, loads = [], []
    for i in range(n):
        cpu = int(rng.integers(0, 8))
        allowed = [c for c in range(8) if rng.random() < 0.7] or [int(rng.integers(0, 8))]
        execs = bool(rng.random() < 0.4)
        outcome = Outcome.EXEC if execs else Outcome.FORK
        made = decision(cpu, cpu, cpu, outcome=outcome, allowed=allowed, wakee_cpu=cpu, jiffies_exit=1_000_000)
        made["seq"], made["ts"], made["ts_exit"] = i, i, i
        made["wakee_preferred_nid"], made["wakee_policy"] = rng.integers(-1, 2), rng.choice([0, 5])
        rows.append(made)
        level = int(rng.integers(0, 3))
        for kind in (Load.ENTRY, Load.EXIT):
            for asked in range(8):
                if kind == Load.EXIT and rng.random() < 0.8:
                    continue
                loads.append(_random_load(rng, cpu, i, asked, kind, execs and asked == cpu, level))
    return np.concatenate(rows), Loads(records("loads", loads), [])


def _random_load(rng: Any, cpu: int, seq: int, asked: int, kind: int, own: bool, level: int) -> dict[str, Any]:
    tasks = int(rng.integers(0, 2 + level)) + own
    values = {name: int(rng.integers(0, 1200)) for name in ("load", "runnable", "util", "util_est")}
    if own:
        values |= {f"own_{name}": int(rng.integers(0, 1000)) for name in values} | {"own_queued": 1}
    return {
        "ts": 1,
        "cpu": cpu,
        "wakeup_seq": seq,
        "asked_cpu": asked,
        "kind": kind,
        "curr": Running.SELF if own else Running.OTHER if tasks else Running.IDLE,
        "nr_running": tasks,
        "nr_idle": int(tasks and rng.random() < 0.1) * tasks,
        "ttwu_pending": int(rng.random() < 0.1),
        "exit_latency": rng.choice([2, 10, NEVER]),
        "idle_stamp": 0 if tasks else int(rng.integers(1, 1000)),
        "imbalance": int(rng.integers(0, 8)) * int(rng.random() < 0.1),
        "capacity": [1024, 2000, 4000] + [0] * 5,
        **values,
    }


@given(st.integers(0, 2**32 - 1), st.sampled_from(["5.10", "5.15.1", "5.15", "5.19", "6.1", "6.12", "7.3"]))
@settings(max_examples=8, deadline=None)
def test_numba_and_plain_python_agree_and_choose_allowed_cpus(seed, release):
    rows, loads = random_forks(seed, 30)
    policy = as_ints(kernel(release))
    compiled, plainly = replay(rows, BOX, policy, HZ, loads), np.zeros(len(rows), RESULT)
    plain(_replay)(rows, loads.find(rows), machine_of(BOX), groups(BOX), policy, HZ, AS_RECORDED, scratch(BOX), plainly)
    np.testing.assert_array_equal(compiled, plainly)
    assert (compiled["certainty"] != Certainty.UNDECIDABLE).all()
    for row, cpu in zip(rows, compiled["cpu"], strict=True):
        assert 0 <= cpu < 8
        assert int(row["allowed"][0]) >> int(cpu) & 1, (mask([cpu]), row["allowed"])
