# SPDX-License-Identifier: GPL-2.0-only
"""What explanations of forks and execs say is so: on all of the corpus, and where groups overlap or are not allowed."""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from wakescope.model.explain import explain
from wakescope.model.kernels import kernel, policy_for
from wakescope.model.loads import Loads
from wakescope.model.policy import NumaSpare
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


def forks(cpus, policy=NEW, machine=BOX, **what):
    row = decision(**{"prev": 0, "outcome": Outcome.FORK, **what})[0]
    return explain(row, machine, policy, HZ, Loads(records("loads", cpu_loads(machine, cpus)), []))


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
