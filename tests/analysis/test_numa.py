# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
import pytest
from wakescope.analysis.numa import (
    Result,
    df_attempts,
    df_numa_events,
    df_observations,
    df_preferred,
    df_retries,
    df_searches,
    df_vmstat,
    interval,
)
from wakescope.schema import NEVER64, NumaEvent
from wakescope.tests.maketrace import task, topology, wake

TASKS = [task(1, b"a"), task(2, b"b")]
MACHINE = {"nodes": 2, "cores": 2}
J = 100_000  # jiffies the traces begin at
RULE = 15  # interval() of a period of 1000 ms at 250 HZ


def event(ts, pid, kind, jiffies, retry, nid=0, src=0, dst=2, **more):
    return {
        "ts": ts, "cpu": 0, "pid": pid, "event": kind, "jiffies": J + jiffies, "migrate_retry": retry and J + retry,
        "scan_period": 1000, "preferred_nid": nid, "src_cpu": src, "dst_cpu": dst, **more,
    }  # fmt: skip


def woken(ts, jiffies, retry, nid=0, waker_retry=300):
    return wake(
        ts, 0, 1, 2, 0, 0, jiffies=J + jiffies, wakee_preferred_nid=nid, wakee_migrate_retry=retry and J + retry,
        wakee_scan_period=1000, waker_migrate_retry=waker_retry and J + waker_retry, waker_scan_period=1000,
    )  # fmt: skip


def test_the_interval_rule():
    assert interval(1000, 250) == RULE
    assert interval(16_000, 250) == 250
    assert interval(60_000, 250) == 250
    assert interval(1001, 250) == 15  # 250.25 jiffies round up to 251, a sixteenth is 15
    assert interval(np.array([1000, 1100]), 1000).tolist() == [62, 68]


def test_attempts_at_faults_are_dated_by_them(trace):
    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        numa=[
            event(10, 2, NumaEvent.FAULT, 0, RULE),  # first seen, and just set
            event(20, 2, NumaEvent.FAULT, 10, RULE),  # nothing new
            event(30, 2, NumaEvent.MOVE, 25, 25 + RULE),  # 10 jiffies late, moves
            event(40, 2, NumaEvent.FAULT, 27, 25 + RULE),
            event(50, 2, NumaEvent.STICK, 50, 50 + RULE, dst=-1),
            event(60, 2, NumaEvent.MOVE, 90, 90 + RULE),
            event(61, 2, NumaEvent.STICK, 90, 90 + RULE),
            event(70, 2, NumaEvent.FAULT, 110, 110 + 40),  # a deadline no rule sets
        ],
    )
    rows = df_attempts(made)
    assert [Result(r).name for r in rows["result"]] == ["SETTLED", "MOVE", "NO_CPU", "STICK", "SETTLED"]
    assert (rows["attempt"] - J).tolist() == [0, 25, 50, 90, 135]
    assert rows["lateness"].tolist()[1:] == [10, 10, 25, 30]
    assert np.isnan(rows["lateness"][0])
    assert rows["seen_late"].tolist() == [0, 0, 0, 0, -25]
    row = df_retries(made).iloc[0]
    assert row[["attempts", "settled", "move", "swap", "stick", "no_cpu"]].tolist() == [5, 2, 1, 0, 1, 1]
    assert row[["checked", "off_rule"]].tolist() == [5, 1]
    assert row[["late_max_ms", "interval_p50_ms"]].tolist() == [120, 60]


def test_attempts_between_wakeups_are_derived(trace):
    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        numa=[],
        wakeups=[
            woken(10, 0, 0),  # no deadline yet
            woken(20, 40, 35),  # set at 20
            woken(30, 60, 70),
            wake(40, 0, 2, 1, 0, 0, jiffies=J + 75, waker_migrate_retry=J + 70, wakee_migrate_retry=J + 300),
            woken(50, 80, 70, waker_retry=NEVER64 - J),
        ],
    )
    rows = df_attempts(made)
    assert rows["task"].tolist() == [1, 1]
    assert (rows["attempt"] - J).tolist() == [20, 55]
    assert not rows["own"].any()
    assert np.isnan(rows["deadline"][0])
    assert rows["lateness"][1] == 20


def test_preferred_node_changes_lie_between_two_records(trace):
    made = trace(
        topology(**MACHINE),
        meta={"start_ts": 0, "stop_ts": 10_000_000},
        tasks=TASKS,
        numa=[event(5_000_000, 2, NumaEvent.FAULT, 9, 20, nid=1)],
        wakeups=[woken(1_000_000, 0, 0, nid=-1), woken(2_000_000, 1, 10, nid=-1), woken(8_000_000, 10, 20, nid=0)],
    )
    assert df_preferred(made).to_numpy().tolist() == [["b:2", 2.0, 5.0, -1, 1], ["b:2", 5.0, 8.0, 1, 0]]
    assert df_preferred(made, task="a").empty


def test_events_by_node(trace):
    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        numa=[
            event(10, 2, NumaEvent.MOVE, 0, 9),
            event(20, 2, NumaEvent.STICK, 0, 9, dst=-1),
            event(30, 2, NumaEvent.FAULT, 0, 9, src=0, dst=0, dst_nid=1),
            event(31, 2, NumaEvent.FAULT, 0, 9, src=0, dst=0, dst_nid=1),
        ],
    )
    assert df_numa_events(made).to_numpy().tolist() == [["fault", 0, 1, 2], ["move", 0, 1, 1], ["no_cpu", 0, -1, 1]]
    assert df_numa_events(made, task="a").empty


def test_vmstat_as_the_posted_tables_have_it(trace):
    before = {"numa_pte_updates": 1000, "numa_huge_pte_updates": 1, "numa_hint_faults": 5, "numa_hint_faults_local": 4}
    after = {"numa_pte_updates": 5000, "numa_huge_pte_updates": 3, "numa_hint_faults": 9, "numa_hint_faults_local": 6}
    table = df_vmstat(trace(meta={"vmstat": {"before": before, "after": after}})).set_index("counter")["difference"]
    assert table.to_dict() == {
        "NUMA base PTE updates": 4000 - 2 * 512,
        "NUMA huge PMD updates": 2,
        "NUMA page range updates": 4000,
        "NUMA hint faults": 4,
        "NUMA hint local faults": 2,
        "NUMA pages migrated": 0,
    }
    assert df_vmstat(trace(meta={"vmstat": {"before": {}, "after": {}}})).empty


def test_searches_by_node(trace):
    def find(ts, nid, cpu, other=0, imp=0):
        more = {"dst_nid": nid, "dst_pid": other, "task_imp": imp, "group_imp": -imp}
        return event(ts, 2, NumaEvent.FIND, 25, 25 + RULE, nid=1, src=0, dst=cpu, **more)

    made = trace(
        topology(**MACHINE),
        tasks=TASKS,
        numa=[
            find(10, 1, -1, imp=300),
            find(20, 1, 2, imp=500),
            event(21, 2, NumaEvent.MOVE, 25, 25 + RULE, nid=1),
            find(30, 1, 3, other=1, imp=400),
            find(40, 0, 3, imp=7),  # the best place is still that of the search before
        ],
    )
    assert df_searches(made).to_numpy().tolist() == [
        ["b:2", 1, 3, 3, 1, 1, 400.0, -400.0],
        ["b:2", 0, 1, 0, 0, 0, 7.0, -7.0],
    ]
    assert df_searches(made, task="a").empty
    assert df_numa_events(made)["event"].tolist() == ["move"]  # a search moves nothing
    assert df_attempts(made)["result"].tolist() == [int(Result.MOVE)]


@pytest.mark.parametrize(
    "function", [df_observations, df_attempts, df_retries, df_preferred, df_numa_events, df_searches]
)
def test_an_empty_trace(trace, function):
    assert function(trace(numa=[])).empty
