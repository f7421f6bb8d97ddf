# SPDX-License-Identifier: GPL-2.0-only
"""What explanations say is so on the corpus; and forks where groups overlap, are not allowed, or idle alike."""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wakescope.model.explain import Explanation, explain
from wakescope.model.kernels import kernel, policy_for
from wakescope.model.loads import Loads
from wakescope.model.policy import NumaSpare
from wakescope.model.topo import machine
from wakescope.schema import Outcome
from wakescope.tests.maketrace import records, topology
from wakescope.trace import Trace

from .decisions import BOX, HZ, busy, cpu_loads, decision

CORPUS = Path(__file__).parent.parent / "corpus"
NEW = kernel("6.12")
SIDE = r"[\w ]*?\d+(?: (?:\+|x) [\w ]*?\d+)*"  # such as: 100 x avg_load 1198
COMPARISON = re.compile(rf"({SIDE}) (<=|>=|<|>) ({SIDE})")
HOLDS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def value(side):
    total, sign = None, "+"
    for sign, number in re.findall(r"(?:^|(\+|x) )[\w ]*?(\d+)(?= [+x] |$)", side):
        total = int(number) if total is None else total + int(number) if sign == "+" else total * int(number)
    return total


def comparisons(text):
    """(text, whether it holds) of every comparison in a sentence."""
    for left, sign, right in COMPARISON.findall(text):
        yield f"{left} {sign} {right}", HOLDS[sign](value(left), value(right))


def test_comparisons_are_read():
    said = "100 x avg_load 1198 > imbalance_pct 117 x 1024: go; load 1024 + imbalance 174 >= 1200, and 2 <= 2"
    assert [holds for _, holds in comparisons(said)] == [False, False, True]
    assert value("avg_load 1024 + imbalance 174") == 1198


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("*forks*.wake")))
def test_every_comparison_said_of_a_fork_holds(name):
    trace = Trace.open(CORPUS / name)
    rows, loads = trace.array("wakeups"), Loads.of(trace)
    said = 0
    for number in np.flatnonzero(np.isin(rows["outcome"], (Outcome.FORK, Outcome.EXEC))):
        reasons, _ = explain(rows[number], trace.topology, policy_for(trace.meta).policy, HZ, loads)
        for reason in reasons:
            for text, holds in comparisons(reason.text):
                assert holds, f"wakeup {number}: {text}"
                said += 1
    assert said > 50


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.glob("*forks*.wake")))
def test_where_nothing_is_found_nothing_idles(name):
    trace = Trace.open(CORPUS / name)
    rows, policy = trace.array("wakeups"), policy_for(trace.meta).policy
    where = machine(trace.topology)
    placed = np.flatnonzero(rows["outcome"] == Outcome.PLACED)
    for number in placed[:: max(1, len(placed) // 100)]:
        explanation = Explanation(rows[number], trace.topology, policy, HZ)
        if any(reason.text.startswith("nothing found") for reason in explanation.reasons()):
            llc = where.cpus[int(explanation.result["target"])].llc_span
            assert not (rows["idle"][number] & rows["allowed"][number] & llc).any(), f"wakeup {number}"


def forks(cpus, policy=NEW, box=BOX, **what):
    row = decision(**{"prev": 0, "outcome": Outcome.FORK, **what})[0]
    return explain(row, box, policy, HZ, Loads(records("loads", cpu_loads(box, cpus)), []))


BIG = topology(nodes=2, cores=8, threads=2)
BIG = replace(BIG, domains=[replace(sd, imb_numa_nr=2) for sd in BIG.domains])
THERE = "{" + ",".join(map(str, range(16, 32))) + "}"


@pytest.mark.parametrize(
    ("rule", "cpus", "more", "said"),
    [
        (NumaSpare.IDLE, {0: busy()}, {}, "its own group has idle CPUs: 15 > 0"),
        (NumaSpare.QUARTER_SPAN, {0: busy()}, {}, "tasks: 1 < 8, a quarter of the domain's CPUs"),
        (NumaSpare.QUARTER_GROUP, {0: busy()}, {}, "tasks with this one: 2 < 4, a quarter of the group's CPUs"),
        (NumaSpare.IMB_NUMA_NR, {0: busy()}, {}, "tasks with this one: 2 <= imb_numa_nr 2"),
        (NumaSpare.ADJUST, {0: busy()}, {}, "tasks with this one: 2 <= imb_numa_nr 2, and idle CPUs differ by 1 <= 2"),
        (NumaSpare.ADJUST, {}, {"allowed": [0, 16]}, f"as many idle CPUs here as in {THERE}"),
        (NumaSpare.ADJUST, {0: busy(), 16: busy()}, {}, f"as many idle CPUs here as in {THERE}"),
    ],
)
def test_which_numa_rule_keeps_a_fork(rule, cpus, more, said):
    reasons, _ = forks(cpus, NEW | {"numa_spare": rule}, BIG, **more)
    own = [reason.text for reason in reasons if "on a node" in reason.text]
    assert [text.partition("on a node, ")[2] for text in own] == [f"{said}: stay"]


def test_imb_numa_nr_is_bounded_by_the_allowed_cpus():
    few = {"allowed": [0, 16, 17], "wakee_nr_allowed": 3}
    reasons, _ = forks({}, NEW, BIG, **few)
    said = next(reason.text for reason in reasons if "on a node" in reason.text)
    assert "tasks with this one: 1 <= imb_numa_nr 1, and idle CPUs differ by 1 <= 2" in said


def picks(cpus, **what):
    reasons, _ = forks({0: busy(), **cpus}, **what)
    return [reason.text for reason in reasons if reason.function == "find_idlest_group_cpu"]


@pytest.mark.parametrize(
    ("cpus", "cpu", "said"),
    [
        ({}, 7, "of 4 idle ones it became idle last, idle_stamp 1007 ns"),
        ({4: {"exit_latency": 9}, 5: {"exit_latency": 2}}, 7, "became idle last, idle_stamp 1007 ns, from CPU 5, the"),
        (
            {cpu: {"exit_latency": 9 - cpu} for cpu in range(4, 8)},
            7,
            "of 4 idle ones it has the least exit_latency, 2 us",
        ),
        (
            {cpu: {"exit_latency": 5} for cpu in range(4, 8)},
            7,
            "of 4 idle ones it became idle last, idle_stamp 1007 ns",
        ),
        ({4: busy(), 5: busy(), 6: busy()}, 7, "the only idle one"),
        ({6: busy(nr_idle=1)}, 6, "it runs only SCHED_IDLE tasks"),
    ],
)
def test_why_this_cpu_of_the_group(cpus, cpu, said):
    found = picks({1: busy(), 2: busy(), 3: busy(), **cpus})
    assert said in found[0]
    assert found[0].startswith(f"CPU {cpu} of ")


def test_the_least_loaded_of_busy_ones():
    found = picks({cpu: busy(load=900 + cpu if cpu > 3 else 3000, tasks=1 if cpu > 3 else 3) for cpu in range(8)})
    assert found[0] == "CPU 4 of {4,5,6,7}: none is idle: it has the least load, 904"


def test_no_other_group_is_allowed():
    reasons, _ = forks({}, allowed=[0, 1, 2])
    said = [reason.text for reason in reasons if reason.function == "find_idlest_group"]
    assert said[0] == "level 2 of CPU 0: no CPU of another group is allowed: stay"


def test_the_last_local_group_counts():
    # Groups of NUMA domains may overlap: here the third one holds CPU 0 as the first does.
    three = topology(nodes=3, cores=2, threads=2)
    groups, last = list(three.groups), three.chain(0)[2].ring[2]
    groups[last] = replace(groups[last], span=[0, 8, 9, 10, 11], weight=5)
    reasons, _ = forks({cpu: busy() for cpu in range(3)}, box=replace(three, groups=groups))
    said = next(reason.text for reason in reasons if reason.function == "find_idlest_group")
    assert said == "level 2 of CPU 0: on a node, as many idle CPUs here as in {4,5,6,7}: stay"
