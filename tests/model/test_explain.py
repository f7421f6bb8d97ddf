# SPDX-License-Identifier: GPL-2.0-only
"""Explanations say what the model found, where it comes from, and what was missed."""

from __future__ import annotations

import pytest
from wakescope.model.explain import Source, explain
from wakescope.model.kernels import kernel
from wakescope.model.loads import Loads
from wakescope.model.replay import Certainty, replay
from wakescope.schema import NEVER, Outcome
from wakescope.tests.maketrace import records

from .decisions import BOX, HZ, SYNC, busy, cpu_loads, decision, random_decisions

NEW = kernel("6.12")


def chain(**what):
    reasons, verdict = explain(decision(**what)[0], BOX, NEW, HZ)
    return {reason.function: reason for reason in reasons}, verdict


def test_not_wide_and_prev_idle():
    reasons, verdict = chain(idle=[0, 2], waker_flips=7, wakee_flips=3, waker_last_wakee=9, chosen=2)
    assert reasons["record_wakee"].text == "waker's flips 7: another wakee than last time, now 8"
    assert reasons["wake_wide"].text == "slave 3 < factor 4: not wide"
    assert "but prev is idle too: prev" in reasons["wake_affine"].text
    assert reasons["available_idle_cpu"].source == Source.MEASURED
    assert verdict == "CPU 2 (target), as the kernel"


def test_weights_are_spelled_out():
    reasons, _ = chain(wake_flags=SYNC, this_load=1621)
    text = reasons["wake_affine"].text
    assert "this (1621 - current's 500 + wakee's 500) on capacity 1024 against prev (2000 - 500) on 1024" in text
    assert "imbalance_pct 117" in text


def test_what_was_missed_is_said():
    reasons, verdict = chain(wake_flags=NEVER, this_nr_running=1, this_h_nr_queued=1, this_h_nr_runnable=1, chosen=0)
    assert reasons["wake_affine"].source == Source.UNKNOWN
    assert reasons[""].text == "missed: whether it is a sync wakeup (wake_flags)"
    assert verdict == "undecidable; the kernel chose CPU 0, one of the CPUs the missed facts allow"


def test_a_disagreement_and_a_race_are_said():
    _, verdict = chain(idle=[2], idle_exit=[], chosen=1)
    assert verdict == "CPU 2 (target), but the kernel chose CPU 1, with something it looked at changing meanwhile"


@pytest.mark.parametrize("release", ["5.10", "6.1", "6.12", "7.3"])
def test_any_decision_can_be_explained_as_replay_has_it(release):
    rows = random_decisions(5, BOX, 150, unknown=0.05)
    results = replay(rows, BOX, kernel(release), HZ)
    for row, result in zip(rows, results, strict=True):
        reasons, verdict = explain(row, BOX, kernel(release), HZ)
        assert len(reasons) >= 2
        if result["certainty"] == Certainty.UNDECIDABLE:
            assert verdict.startswith("undecidable")
        else:
            assert verdict.startswith(f"CPU {result['cpu']} (")


def forks(cpus, **what):
    row = decision(prev=0, outcome=Outcome.FORK, **what)[0]
    return explain(row, BOX, NEW, HZ, Loads(records("loads", cpu_loads(BOX, cpus)), []))


def test_a_fork_is_told_domain_by_domain():
    reasons, verdict = forks({0: busy()}, chosen=7)
    assert reasons[0].text == "CPU 0 forks a task from CPU 0"
    assert [reason.text for reason in reasons[1:4]] == [
        "level 2 of CPU 0: {0,1,2,3} has_spare, 1 tasks, 3 idle CPUs, util 1024 of 4096; "
        "{4,5,6,7} has_spare, 0 tasks, 4 idle CPUs, util 0 of 4096",
        "level 2 of CPU 0: idle CPUs: its own 3 < 4 of {4,5,6,7}: go",
        "CPU 7 of {4,5,6,7}: of 4 idle ones it became idle last, idle_stamp 1007 ns",
    ]
    assert reasons[1].source == Source.DERIVED
    assert verdict == "CPU 7 (idlest_idle), as the kernel"


def test_why_a_fork_stays():
    found = {cpu: busy(load=1198 if cpu < 4 else 1024) for cpu in range(8)}
    reasons, _ = forks(found)
    assert reasons[2].text == "level 2 of CPU 0: on another node, avg_load 1024 + imbalance 174 >= 1198: stay"


def test_a_fork_without_figures():
    reasons, verdict = explain(decision(outcome=Outcome.FORK)[0], BOX, NEW, HZ)
    assert reasons[1].source == Source.UNKNOWN
    assert reasons[2].text == "missed: what the CPUs of each group carry, or which groups there are"
    assert verdict.startswith("undecidable")


def test_any_fork_can_be_explained_as_replay_has_it():
    from .test_idlest import random_forks

    rows, loads = random_forks(11, 60)
    results = replay(rows, BOX, NEW, HZ, loads)
    for row, result in zip(rows, results, strict=True):
        _, verdict = explain(row, BOX, NEW, HZ, loads)
        assert verdict.startswith(f"CPU {result['cpu']} (")
