# SPDX-License-Identifier: GPL-2.0-only
from wakescope.analysis.runqueue import df_runqueue
from wakescope.tests.maketrace import switch, task, wake

TASKS = [task(1, b"a"), task(2, b"b")]
MS = 1_000_000


def test_where_the_time_went(trace):
    made = trace(
        tasks=TASKS,
        meta={"start_ts": 0, "stop_ts": 100 * MS},
        wakeups=[wake(20 * MS, 0, 1, 2, 1, 1)],
        switches=[
            switch(2 * MS, 1, 0, 2),
            switch(5 * MS, 1, 2, 1, on_rq=1),  # b ran 3, is preempted
            switch(9 * MS, 1, 1, 2),  # waited 4
            switch(10 * MS, 1, 2, 0),  # ran 1, sleeps
            switch(26 * MS, 1, 0, 2),  # slept 10, waited 6
        ],
    )
    row = df_runqueue(made).set_index("task").loc["b:2"]
    assert row[["running_ms", "preempt_wait_ms", "wake_wait_ms", "sleep_ms"]].tolist() == [4, 4, 6, 10]
    assert row[["runs", "preemptions", "wake_waits", "sleeps"]].tolist() == [2, 1, 1, 1]
    assert row["cut"] == 1  # its first switch in ends an interval that began before the trace
    assert df_runqueue(made, task="b")["task"].tolist() == ["b:2"]


def test_a_lost_switch_cuts_what_it_may_have_split(trace):
    made = trace(
        tasks=TASKS,
        switches=[switch(1 * MS, 0, 0, 1, seq=0), switch(9 * MS, 0, 1, 0, seq=4), switch(12 * MS, 0, 0, 1, seq=5)],
    )
    row = df_runqueue(made).set_index("task").loc["a:1"]
    assert row[["running_ms", "runs", "sleep_ms", "sleeps"]].tolist() == [0, 0, 3, 1]
    assert row["cut"] == 2


def test_a_wakeup_that_meets_the_sleeper_switching_out_is_no_negative_sleep(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(4 * MS, 1, 1, 2, 0, 0)],
        switches=[switch(1 * MS, 0, 0, 2), switch(5 * MS, 0, 2, 0), switch(7 * MS, 0, 0, 2)],
    )
    row = df_runqueue(made).set_index("task").loc["b:2"]
    assert row[["running_ms", "sleep_ms", "wake_wait_ms"]].tolist() == [4, 0, 3]


def test_an_empty_trace(trace):
    assert df_runqueue(trace()).empty
