# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
import pytest
from wakescope.analysis.tasks import codes_at, comms_at, df_tasks, selected, wakee_codes, waker_codes
from wakescope.errors import UsageError
from wakescope.schema import TaskEvent
from wakescope.tests.maketrace import task, wake


@pytest.fixture
def reused(trace):
    """pid 7 is first a (born at 100, exits at 500), then b (born at 600), renamed c at 800."""
    return trace(
        tasks=[
            task(7, b"a", ts=100, start=100, event=TaskEvent.NEW),
            task(7, b"a", ts=500, start=100, event=TaskEvent.EXIT),
            task(7, b"b", ts=600, start=600, event=TaskEvent.NEW),
            task(7, b"c", ts=800, start=600, event=TaskEvent.RENAME),
            task(9, b"nine", ts=50),
        ],
        wakeups=[
            wake(200, 0, 9, 7, 0, 0, wakee_start=100),
            wake(700, 1, 9, 7, 0, 0, wakee_start=600),
            wake(900, 0, 0, 7, 0, 0, wakee_start=600, waker_start=0),
            wake(950, 1, 0, 7, 0, 0, wakee_start=600, waker_start=0),
        ],
    )


def test_a_pid_used_again_is_another_task(reused):
    labels = df_tasks(reused)["label"].to_numpy()
    assert labels[wakee_codes(reused)].tolist() == ["a:7", "c:7#2", "c:7#2", "c:7#2"]
    assert labels[codes_at(reused, np.array([7, 7, 7]), np.array([499, 600, 900]))].tolist() == [
        "a:7",
        "c:7#2",
        "c:7#2",
    ]
    assert df_tasks(reused).set_index("label").loc["a:7", "exit_ts"] == 500


def test_idle_tasks_are_told_apart_by_cpu(reused):
    labels = df_tasks(reused)["label"].to_numpy()
    assert labels[waker_codes(reused)].tolist() == ["nine:9", "nine:9", "swapper/0", "swapper/1"]


def test_names_are_a_history(reused):
    code = wakee_codes(reused)
    assert comms_at(reused, code, np.array([200, 700, 900, 950])).tolist() == ["a", "b", "c", "c"]
    assert df_tasks(reused).set_index("label").loc["c:7#2", "names"] == 2


def test_a_task_no_event_names_is_unknown_not_missing(trace):
    lone = trace(wakeups=[wake(10, 0, 3, 4, 0, 0)])
    assert df_tasks(lone)["label"].tolist() == ["?:3", "?:4"]
    assert codes_at(lone, np.array([4, 5]), np.array([5, 6])).tolist() == [1, -1]


def test_selection_by_pid_old_name_and_pattern(reused):
    labels = df_tasks(reused)["label"].to_numpy()
    assert labels[selected(reused, "7")].tolist() == ["a:7", "c:7#2"]
    assert labels[selected(reused, "b")].tolist() == ["c:7#2"]
    assert labels[selected(reused, "n*")].tolist() == ["nine:9"]
    with pytest.raises(UsageError, match="'zzz'"):
        selected(reused, "zzz")


def test_every_label_chooses_its_task_and_no_other(trace):
    """Names that look like numbers, patterns or labels; digits of other scripts are letters here."""
    names = [b"123", b"7", "²".encode(), "٣".encode(), b"a:1", b"thread 0/0", b"x#2"]
    made = trace(tasks=[task(number, name) for number, name in enumerate(names, 1)])
    for code, label in enumerate(df_tasks(made)["label"]):
        assert np.flatnonzero(selected(made, label)).tolist() == [code]
    assert np.flatnonzero(selected(made, "²")).tolist() == [2]
    assert np.flatnonzero(selected(made, "٣")).tolist() == [3]
    assert np.flatnonzero(selected(made, "7")).tolist() == [6]  # the pid comes first
    assert np.flatnonzero(selected(made, "123")).tolist() == [0]


def test_the_recorders_own_tasks_are_marked(trace):
    made = trace(
        meta={"recorder_pid": 50},
        tasks=[{**task(50, b"python"), "tgid": 50}, {**task(51, b"drain"), "tgid": 50}, {**task(52, b"x"), "tgid": 52}],
    )
    assert df_tasks(made)["label"].tolist() == ["python:50 (recorder)", "drain:51 (recorder)", "x:52"]
