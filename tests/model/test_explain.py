# SPDX-License-Identifier: GPL-2.0-only
"""Explanations say what the model found, where it comes from, and what was missed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wakescope.model.explain import Source, explain
from wakescope.model.kernels import kernel
from wakescope.model.loads import Loads
from wakescope.model.replay import Certainty, replay
from wakescope.schema import NEVER, Outcome
from wakescope.tests.maketrace import records

from .decisions import BOX, HZ, SYNC, busy, cpu_loads, decision, random_decisions

NEW = kernel("6.12")


def chain(policy=NEW, machine=BOX, **what):
    reasons, verdict = explain(decision(words=machine.words, **what)[0], machine, policy, HZ)
    return {reason.function: reason for reason in reasons}, verdict


def links(policy=NEW, machine=BOX, **what):
    """(function, text, source) of each reason."""
    reasons, _ = explain(decision(words=machine.words, **what)[0], machine, policy, HZ)
    return [(reason.function, reason.text, reason.source.value) for reason in reasons]


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
            assert [link.source for link in reasons if link.text.startswith("depends on")] == [Source.UNKNOWN]
            assert reasons[-1].source == Source.UNKNOWN
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


def test_where_the_task_last_ran_is_not_its_wake_cpu():
    assert links(wakee_cpu=2)[0] == ("try_to_wake_up", "CPU 0 wakes a task last on CPU 2, not sync", "measured")
    assert links(wakee_cpu=5)[0][1] == "CPU 0 wakes a task last on CPU 5, its wake_cpu (prev) CPU 2, not sync"


EXITING = 0x4


@pytest.mark.parametrize(
    ("release", "what", "sync", "more"),
    [
        ("6.12", {"wake_flags": SYNC}, ", sync", None),
        ("6.12", {"wake_flags": SYNC, "waker_flags": EXITING}, ", sync", "sync, but current is exiting: not sync"),
        ("6.12", {"waker_flags": EXITING}, ", not sync", None),
        ("4.15", {"wake_flags": 1, "waker_flags": EXITING}, ", sync", None),
        ("6.12", {"waker_flags": NEVER}, ", not sync", None),
        ("6.12", {"wake_flags": NEVER, "waker_flags": EXITING}, "", "current is exiting: not sync"),
    ],
)
def test_sync_and_exiting(release, what, sync, more):
    (_, text, source), after, *_ = links(kernel(release), wakee_cpu=2, **what)
    assert (text, source) == ("CPU 0 wakes a task last on CPU 2" + sync, "measured")
    assert after == ("select_task_rq_fair", more, "derived") if more else after[0] == "record_wakee"


@pytest.mark.parametrize(
    "what", [{"wake_flags": NEVER}, {"wake_flags": SYNC, "waker_flags": NEVER}], ids=["wake_flags", "current.flags"]
)
def test_unknown_sync_is_marked_so(what):
    found = links(wakee_cpu=2, **what)[1]
    assert found[0] == "select_task_rq_fair"
    assert "was not captured" in found[1]
    assert found[2] == "unknown"


def test_unknown_limits_of_the_scan_are_marked_so():
    found = [link[1:] for link in links(prev_nr_idle_scan=-1, this_nr_idle_scan=-1) if link[0] == "select_idle_cpu"]
    assert found == [
        ("has_idle_cores 0; search order SMT, then core or CPU", "measured"),
        ("not captured: nr_idle_scan", "unknown"),
    ]


def test_the_limits_are_those_of_the_targets_llc():
    what = {
        "prev": 4,
        "this_nr_idle_scan": 3,
        "prev_nr_idle_scan": 2,
        "this_has_idle_cores": 0,
        "prev_has_idle_cores": 1,
    }
    to_prev, _ = chain(this_load=9000, **what)
    assert to_prev["select_idle_cpu"].text.startswith("has_idle_cores 1, nr_idle_scan 2;")
    to_this, _ = chain(this_load=0, **what)
    assert to_this["select_idle_cpu"].text.startswith("has_idle_cores 0, nr_idle_scan 3;")


def test_idle_words_kept_from_switches_are_derived():
    assert chain(idle=[2], has_masks=1)[0]["available_idle_cpu"].source == Source.MEASURED
    assert chain(idle=[2], has_masks=2)[0]["available_idle_cpu"].source == Source.DERIVED


@pytest.mark.parametrize(
    ("policy", "what", "said"),
    [
        (NEW, {}, "nothing found"),
        (
            NEW,
            {"this_nr_idle_scan": 0, "prev_nr_idle_scan": 0},
            "the scan of the LLC's CPUs is not begun, as nr_idle_scan is 0",
        ),
        (NEW, {"this_nr_idle_scan": 2, "prev_nr_idle_scan": 2}, "the scan is given up after 2 CPUs"),
        (NEW, {"this_nr_idle_scan": 3, "prev_nr_idle_scan": 3}, "the scan is given up after 3 CPUs"),
        (
            NEW,
            {"this_has_idle_cores": 1, "prev_has_idle_cores": 1, "this_nr_idle_scan": 1, "prev_nr_idle_scan": 1},
            "nothing found",
        ),
        (kernel("5.10"), {"this_avg_idle": 0}, "the scan is given up after 3 CPUs"),
        (
            kernel("5.10") | {"sis_avg_cpu": 1},
            {"this_avg_idle": 0},
            "the scan of the LLC's CPUs is not begun, as avg_idle 0 / 512 < avg_scan_cost 1000 + 1",
        ),
    ],
)
def test_a_scan_that_is_cut_does_not_say_that_nothing_idles(policy, what, said):
    found, _ = chain(policy, **what)
    assert found["select_idle_sibling"].text == f"{said}: the target, busy as it is: CPU 2"


def test_the_chain_stops_where_idleness_is_unknown():
    found = links(has_masks=0)
    assert found[-3:] == [
        ("wake_wide", "slave 0 < factor 4: not wide", "derived"),
        ("wake_affine", "depends on which CPUs are idle, which was not captured", "unknown"),
        ("", "missed: which CPUs are idle", "unknown"),
    ]
    found = links(has_masks=0, waker_flips=99, wakee_flips=9)  # wide: wake_affine is not asked
    assert found[-3:-1] == [
        ("select_task_rq_fair", "wide, so prev stays the target", "derived"),
        ("select_idle_sibling", "depends on which CPUs are idle, which was not captured", "unknown"),
    ]


def test_an_open_question_that_does_not_matter_stops_nothing():
    found = links(wake_flags=NEVER, idle=[0, 2])  # both idle, sync or not
    assert [function for function, _, _ in found[-3:]] == ["available_idle_cpu", "select_idle_sibling", ""]
    assert found[-2] == ("select_idle_sibling", "the target is usable: CPU 2", "derived")


def test_a_cpu_that_no_answer_changes_is_said():
    found = links(waker_flips=NEVER, this_load=9000, idle=[2])  # prev is idle, wide or not
    assert found[-3:-1] == [
        ("select_task_rq_fair", "depends on the flips of waker or wakee, which was not captured", "unknown"),
        ("select_task_rq_fair", "CPU 2, whatever was missed", "derived"),
    ]


def test_where_the_scan_may_end_is_open():
    found = links(this_nr_idle_scan=-1, prev_nr_idle_scan=-1, idle=[1])
    assert ("available_idle_cpu", "CPU 0 busy; CPU 2 busy; CPU 2 busy; CPU 3 busy", "measured") in found
    assert "select_idle_cpu" in [function for function, _, _ in found]
    assert "depends on how far the scan may go" in found[-2][1]


def test_cpus_of_different_capacity_end_the_chain():
    uneven = replace(BOX, domains=[replace(sd, flags=[*sd.flags, "ASYM_CPUCAPACITY"]) for sd in BOX.domains])
    found = links(machine=uneven)
    assert "select_idle_cpu" not in [function for function, _, _ in found]
    assert found[-2][0] == "select_idle_sibling"
    assert found[-2][1].startswith("depends on which CPUs fit the task")
    assert found[-2][2] == "unknown"


def test_a_domain_that_balances_at_wakeups_ends_the_chain():
    slow = replace(BOX, domains=[replace(sd, flags=[*sd.flags, "BALANCE_WAKE"]) for sd in BOX.domains])
    found = links(machine=slow, waker_flips=99, wakee_flips=9)
    assert "select_idle_cpu" not in [function for function, _, _ in found]
    assert found[-1][1].startswith("a domain has SD_BALANCE_WAKE")
    assert found[-1][2] == "unknown"


@pytest.mark.parametrize(
    ("flips", "wakee_flips", "factor", "said"),
    [
        (7, 2, 4, "slave 2 < factor 4: not wide"),
        (15, 4, 4, "master 15 < slave 4 x factor 4: not wide"),
        (16, 4, 4, "slave 4 >= factor 4 and master 16 >= slave x factor: wide"),
        (4, 16, 4, "slave 4 >= factor 4 and master 16 >= slave x factor: wide"),
        (2**31, 2**31, 4, "slave 2147483648 >= factor 4 and master 2147483648 >= slave x factor, in 32 bits 0: wide"),
    ],
)
def test_wide_or_not(flips, wakee_flips, factor, said):
    found, _ = chain(waker_flips=flips, wakee_flips=wakee_flips, waker_last_wakee=2, llc_size=factor)
    assert found["wake_wide"].text == said


def test_what_record_wakee_did():
    found, _ = chain(waker_flips=7, waker_last_wakee=2)
    assert found["record_wakee"].text == "waker's flips 7: the same wakee again, now 7"
    assert found["record_wakee"].source == Source.DERIVED
    found, _ = chain(waker_flips=7, waker_last_wakee=2, waker_decay_ts=1_000_000 - HZ - 1)
    assert found["record_wakee"].text == "waker's flips 7: halved, the same wakee again, now 3"


def test_prev_alone_is_idle():
    found, _ = chain(idle=[2])
    assert found["wake_affine"].text == "prev is idle: prev (target 2, domain MC, imbalance_pct 117)"


def test_what_each_cpu_looked_at_ran():
    found, _ = chain(idle=[1], sched_idle=[3])
    assert "CPU 2 busy; CPU 3 runs only SCHED_IDLE tasks" in found["available_idle_cpu"].text
    assert found["select_idle_sibling"].text == "an idle SMT sibling: CPU 3"


def test_none_of_the_cpus_is_said():
    what = {"wake_flags": NEVER, "this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1}
    _, verdict = chain(chosen=7, **what)
    assert verdict == "undecidable; the kernel chose CPU 7, none of the CPUs the missed facts allow"


def test_the_loads_that_sync_compares_are_said():
    found, _ = chain(wake_flags=SYNC, this_load=400)
    assert found["wake_affine"].text.startswith("sync, and current's load 500 > CPU 0's 400: CPU 0")


def test_cpus_that_are_not_allowed_count_where_the_kernel_counts_them():
    what = {"allowed": [0, 2, 4], "this_avg_idle": 0}  # a scan of at most three CPUs
    found, _ = chain(kernel("5.10"), **what)
    assert found["select_idle_sibling"].text.startswith("nothing found")
    found, _ = chain(kernel("5.10") | {"scan_all": 1}, **what)
    assert found["select_idle_sibling"].text.startswith("the scan is given up after 3 CPUs")
