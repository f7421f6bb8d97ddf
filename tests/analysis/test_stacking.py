# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
from wakescope.analysis.stacking import Stacking, df_stacked, df_stacking, df_stacking_pairs, is_sync
from wakescope.schema import NEVER, Context
from wakescope.tests.maketrace import mask, switch, task, topology, wake

TASKS = [task(1, b"a"), task(2, b"b"), task(3, b"c")]


def stackings(made):
    return [Stacking(s).name for s in df_stacked(made)["stacking"]]


def test_what_each_decision_found(trace):
    def word(*idle):
        return {"has_masks": 2, "idle": mask(idle)}

    made = trace(
        topology(llcs=2, cores=2),  # LLCs 0-1, 2-3
        tasks=TASKS,
        wakeups=[
            wake(10, 0, 1, 2, 1, 1, **word(1, 3)),
            wake(20, 0, 1, 2, 1, 0, **word(1, 3)),
            wake(30, 0, 1, 2, 1, 0, **word(3)),
            wake(40, 0, 1, 2, 1, 0, **word(3), allowed=mask([0, 1])),
            wake(50, 0, 1, 2, 1, 1, **word(3), sched_idle=mask([1])),  # SCHED_IDLE tasks only: as good as idle
            wake(60, 0, 1, 2, 1, 0, has_masks=0),  # CPU 0 never switched
            wake(70, 0, 1, 2, 1, -1, **word(3)),
        ],
    )
    assert stackings(made) == ["IDLE", "LLC", "MACHINE", "NO_OTHER", "IDLE", "UNKNOWN", "UNKNOWN"]
    assert df_stacking(made).set_index("stacking")["decisions"].to_dict() == {
        "idle": 2, "no_other": 1, "llc": 1, "machine": 1, "unknown": 2,
    }  # fmt: skip


def test_cost_is_against_the_same_pairs_unstacked_median(trace):
    def run(ts, wait, idle):
        wakeup = wake(ts, 0, 1, 2, 1, 1, has_masks=2, idle=mask(idle))
        return wakeup, [switch(ts + wait, 1, 3, 2), switch(ts + wait + 1, 1, 2, 3, on_rq=0)]

    parts = [run(10_000, 1000, [1]), run(20_000, 3000, [1]), run(30_000, 9000, [0]), run(50_000, 6000, [0])]
    made = trace(
        topology(cores=2), tasks=TASKS, wakeups=[w for w, _ in parts], switches=[s for _, p in parts for s in p]
    )
    row = df_stacking_pairs(made).iloc[0]
    assert (row["decisions"], row["stacked"], row["wait_p50"], row["other_p50"]) == (4, 2, 7.5, 2.0)
    assert row["cost_ms"] == (9 + 6 - 2 * 2) / 1e3


def test_a_pair_without_unstacked_decisions_is_counted_not_costed(trace):
    made = trace(
        topology(cores=2),
        tasks=TASKS,
        wakeups=[wake(10, 0, 1, 2, 1, 1, has_masks=2, idle=mask([0]))],
        switches=[switch(100, 1, 3, 2)],
    )
    row = df_stacking_pairs(made).iloc[0]
    assert row["stacked"] == 1
    assert np.isnan(row["cost_ms"])


def test_a_waker_that_did_not_sleep(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[
            wake(1000, 0, 1, 2, 0, 0, wake_flags=0x18),  # sync; the waker is preempted at 4000
            wake(6000, 0, 1, 2, 0, 0, wake_flags=0x18),  # sync; it sleeps at once
            wake(9000, 0, 1, 2, 0, 0, wake_flags=0x08, context=Context.SOFTIRQ),
            wake(9500, 0, 1, 2, 0, 0, wake_flags=0x08),  # never seen to leave
        ],
        switches=[switch(4000, 0, 1, 2, on_rq=1), switch(5000, 0, 2, 1), switch(6200, 0, 1, 2), switch(7000, 0, 2, 1)],
    )
    stacked = df_stacked(made)
    assert stacked["on_waker"].tolist() == [True, True, False, True]
    assert stacked["ran_on"].tolist() == [3000, 200, -1, -1]
    assert stacked["slept"].tolist() == [False, True, False, False]
    row = df_stacking_pairs(made).iloc[0]
    assert (row["on_waker"], row["awake"], row["sync_awake"], row["ran_on_p50"]) == (3, 1, 1, 1.6)


def test_what_a_waker_that_did_not_sleep_cost(trace):
    def run(ts, wait, chosen, on_rq):
        wakeup = wake(ts, 0, 1, 2, 1, chosen, has_masks=2, idle=mask([1]))
        out = [switch(ts + wait, 0, 1, 2, on_rq), switch(ts + wait + 10, 0, 2, 1)] if chosen == 0 else []
        return wakeup, out or [switch(ts + wait, 1, 0, 2), switch(ts + wait + 10, 1, 2, 0)]

    parts = [run(10_000, 7000, 0, 1), run(30_000, 3000, 0, 0), run(50_000, 1000, 1, 0)]
    made = trace(
        topology(cores=2), tasks=TASKS, wakeups=[w for w, _ in parts], switches=[s for _, p in parts for s in p]
    )
    row = df_stacking_pairs(made).iloc[0]
    assert row[["stacked", "on_waker", "awake"]].tolist() == [2, 2, 1]
    assert row[["awake_p50", "other_p50", "awake_cost_ms", "cost_ms"]].tolist() == [7.0, 1.0, 0.006, 0.008]


def test_sync_is_known_only_where_flags_are():
    flags = np.array([NEVER, 0x10, 0x8, 0x1, 0x10], np.uint32)
    sd_flag = np.array([0, 0, 0, 0x10, 0x10], np.uint32)
    assert is_sync(flags, sd_flag).tolist() == [False, True, False, True, False]


def test_an_empty_trace(trace):
    assert df_stacking(trace()).empty
    assert df_stacking_pairs(trace()).empty
