# SPDX-License-Identifier: GPL-2.0-only
"""Which wakeup explain takes for the one that is meant, and whom it names."""

from __future__ import annotations

import pytest
from wakescope.errors import TraceError, UsageError
from wakescope.model.explain_find import find_wakeup, parties, who
from wakescope.schema import Context, Outcome
from wakescope.tests.maketrace import make_trace, task, wake

SECOND = 10**9


@pytest.fixture
def trace(tmp_path):
    tasks = [
        task(1, b"shell"),
        task(2, b"bash", ts=SECOND),
        task(2, b"python", ts=3 * SECOND),  # an exec
        task(3, b"[red]x", ts=SECOND),
        task(2, b"later", ts=6 * SECOND, start=600),  # the pid is used again
    ]
    wakeups = [
        wake(1 * SECOND, 0, 1, 3, 0, 0),
        wake(2 * SECOND, 0, 1, 2, 0, 0),
        wake(4 * SECOND, 0, 1, 2, 0, 0, context=Context.SOFTIRQ),
        wake(5 * SECOND, 0, 1, 2, 0, 0, outcome=Outcome.QUEUED),
        wake(7 * SECOND, 0, 1, 2, 0, 0, wakee_start=600),
        wake(8 * SECOND, 0, 1, 3, 0, 0, outcome=Outcome.FORK),
        wake(9 * SECOND, 0, 3, 3, 0, 0, outcome=Outcome.EXEC),
    ]
    marks = {"start_ts": SECOND, "stop_ts": 11 * SECOND}
    return make_trace(tmp_path / "some.wake", {"tasks": tasks, "wakeups": wakeups}, **marks)


@pytest.mark.parametrize(
    ("name", "at", "number"),
    [
        (None, 0, 0),
        (None, 0.5, 1),
        (None, 1, 1),
        (None, 1.000001, 2),
        ("2", None, 1),
        ("3", None, 0),
        ("bash", None, 1),
        ("python", None, 2),  # not before it was called so
        ("p*n", None, 2),
        ("p*", None, 2),  # nor does a pattern of names fit the label
        ("later", None, 4),
        ("python:2", None, 1),  # a label stands for the task, whatever it was called then
        ("python:2", 2, 2),
        ("later:2#2", None, 4),
        ("*:3", None, 0),
        ("[red]x", None, 0),
    ],
)
def test_the_wakeup_that_is_meant(trace, name, at, number):
    assert find_wakeup(trace, name, at) == number


@pytest.mark.parametrize(("name", "at"), [("bash", 2), ("nobody", None), ("9", None), ("9" * 30, None), ("later:2", 0)])
def test_no_such_wakeup(trace, name, at):
    with pytest.raises(TraceError, match="no placed wakeup"):
        find_wakeup(trace, name, at)


@pytest.mark.parametrize("at", [-5, -0.001, 10.001, 1e300])
def test_outside_the_trace(trace, at):
    with pytest.raises(UsageError, match=r"outside .*, which goes from 0 to 10\.000 s"):
        find_wakeup(trace, None, at)


@pytest.mark.parametrize(("name", "said"), [(None, "say which"), ("", "empty"), (" ", "empty")])
def test_nothing_is_meant(trace, name, said):
    with pytest.raises(UsageError, match=said):
        find_wakeup(trace, name, None)


def test_who_wakes_whom(trace):
    assert [who(trace, number) for number in (0, 1, 2, 4, 5, 6)] == [
        "wakeup 0: shell:1 wakes [red]x:3",
        "wakeup 1: shell:1 wakes python:2 (then bash)",
        "wakeup 2: shell:1 wakes python:2, in softirq",
        "wakeup 4: shell:1 wakes later:2#2",
        "wakeup 5: shell:1 forks [red]x:3",
        "wakeup 6: [red]x:3 execs",
    ]
    assert parties(trace, 1) == ("shell:1", "python:2 (then bash)")


def test_without_tasks_pids_are_said(tmp_path):
    trace = make_trace(tmp_path / "some.wake", {"wakeups": [wake(1, 0, 1, 3, 0, 0)]})
    assert who(trace, 0) == "wakeup 0: pid 1 wakes pid 3"
    assert find_wakeup(trace, "3", 0) == 0
