# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
import pandas as pd
import pytest
from wakescope.analysis.latency import Wait, df_latency, df_waits
from wakescope.analysis.loss import df_clean
from wakescope.errors import TraceError, UsageError
from wakescope.schema import Outcome
from wakescope.tests.maketrace import make_trace, switch, task, topology, wake

TASKS = [task(1, b"waker"), task(2, b"two"), task(3, b"three")]


def test_a_wait_ends_at_the_first_switch_in(trace):
    made = trace(
        topology(cores=2, threads=2),
        meta={"start_ts": 0, "stop_ts": 10_000},
        tasks=TASKS,
        wakeups=[
            wake(1000, 0, 1, 2, 1, 1),
            wake(2000, 0, 1, 3, 2, 2),
            wake(3000, 0, 1, 2, 1, 1, outcome=Outcome.QUEUED),  # begins none
            wake(9000, 0, 1, 3, 2, 2),  # never runs
        ],
        switches=[
            switch(900, 0, 0, 1),
            switch(1500, 1, 0, 2),
            switch(2600, 2, 0, 3),
            switch(2700, 2, 3, 0),
            switch(3500, 1, 2, 0),
        ],
    )
    waits = df_waits(made)
    assert waits["row"].tolist() == [0, 1, 3]
    assert waits["wait"].tolist() == [500, 600, 1000]
    assert [Wait(s).name for s in waits["state"]] == ["RUN", "RUN", "CENSORED"]
    assert waits["run"].tolist() == [1, 2, -1]
    latency = df_latency(made).iloc[0]
    assert (latency["waits"], latency["censored"], latency["unclean"]) == (3, 1, 0)
    assert (latency["min"], latency["p50"], latency["max"], latency["exact_below"]) == (0.5, 0.6, 1.0, 1.0)
    assert df_latency(made, task="two")["waits"].tolist() == [1]


def test_loss_of_switches_makes_a_wait_unclean(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(1000, 0, 1, 2, 1, 1), wake(5000, 0, 1, 3, 1, 1)],
        switches=[switch(900, 1, 0, 1, seq=0), switch(1500, 1, 1, 2, seq=7), switch(5100, 1, 2, 3, seq=8)],
    )
    assert [Wait(s).name for s in df_waits(made)["state"]] == ["UNCLEAN", "RUN"]
    assert df_latency(made)[["waits", "unclean"]].iloc[0].tolist() == [1, 1]


def test_a_wakeup_in_a_wait_shows_that_a_run_was_not_seen(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(1000, 0, 1, 2, 1, 1), wake(3000, 0, 1, 2, 1, 1)],
        switches=[switch(900, 1, 0, 1), switch(3500, 1, 1, 2)],
    )
    assert [Wait(s).name for s in df_waits(made)["state"]] == ["UNCLEAN", "RUN"]
    assert df_waits(made)["wait"].tolist()[1] == 500


def test_a_task_switched_out_twice_over_ran_unseen(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(1000, 0, 1, 2, 1, 1), wake(5000, 0, 1, 3, 1, 1)],
        switches=[
            switch(800, 1, 7, 2),
            switch(900, 1, 2, 7),
            switch(1500, 1, 2, 3),  # 7 to 2 was not seen
            switch(1600, 1, 3, 0),
            switch(5100, 1, 0, 3),
        ],
    )
    assert [Wait(s).name for s in df_waits(made)["state"]] == ["UNCLEAN", "RUN"]
    assert df_clean(made).set_index("ring").loc["switch", ["lost", "unseen"]].tolist() == [0, 1]


def test_a_wakeup_that_meets_the_sleeper_switching_out(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(1000, 0, 1, 2, 1, 1)],
        switches=[switch(800, 1, 7, 2), switch(1001, 1, 2, 7), switch(1500, 1, 7, 2)],
    )
    assert df_waits(made)[["wait", "state"]].to_numpy().tolist() == [[500, Wait.RUN]]


def test_sibling_is_busy_idle_unknown_or_none(trace):
    wakeups = [wake(1000, 0, 1, 2, 0, 2), wake(2000, 0, 1, 3, 0, 1)]
    switches = [switch(100, 0, 0, 1), switch(500, 3, 2, 0), switch(1100, 2, 0, 2), switch(2100, 1, 0, 3)]
    smt = trace(topology(cores=2, threads=2), tasks=TASKS, wakeups=wakeups, switches=switches)
    assert df_latency(smt, "sibling")["sibling"].tolist() == ["idle", "busy"]
    alone = trace(topology(cores=4), tasks=TASKS, wakeups=wakeups, switches=switches)
    assert df_latency(alone, "sibling")["sibling"].tolist() == ["none"]
    blind = trace(topology(cores=2, threads=2), tasks=TASKS, wakeups=wakeups[:1], switches=[])
    assert df_latency(blind, "sibling")["sibling"].tolist() == ["unknown"]


def test_percentiles_are_nearest_rank(trace):
    n = 1000
    made = trace(
        tasks=TASKS,
        wakeups=[wake(10**6 * i, 0, 1, 2, 1, 1) for i in range(n)],
        switches=[
            s
            for i in range(n)
            for s in (switch(10**6 * i + 1000 * (i + 1), 1, 0, 2), switch(10**6 * (i + 1) - 1, 1, 2, 0))
        ][: 2 * n - 1],
    )
    row = df_latency(made).iloc[0]
    assert row[["min", "p50", "p75", "p90", "p95", "p99", "p99.5", "p99.9", "max"]].tolist() == [
        1, 500, 750, 900, 950, 990, 995, 999, 1000,
    ]  # fmt: skip
    assert np.isnan(row["exact_below"])


def test_by_path_uses_the_paths_given(trace):
    made = trace(
        tasks=TASKS,
        wakeups=[wake(1000, 0, 1, 2, 1, 1), wake(1001, 0, 1, 3, 1, 1)],
        switches=[switch(1500, 1, 0, 2), switch(1700, 1, 2, 3)],
    )
    table = df_latency(made, "path", pd.DataFrame({"path": pd.Categorical(["prev", "target"])})).set_index("path")
    assert table["max"].to_dict() == {"prev": 0.5, "target": 0.699}
    with pytest.raises(UsageError, match="choose moved, sibling or path"):
        df_latency(made, "colour")


def test_without_switches_it_is_refused_by_name(tmp_path):
    lacking = make_trace(tmp_path / "a.wake", {"wakeups": [], "tasks": []})
    with pytest.raises(TraceError, match="no switches table"):
        df_latency(lacking)


def test_an_empty_trace(trace):
    row = df_latency(trace()).iloc[0]
    assert row["waits"] == 0
    assert np.isnan(row["p99"])
    assert df_latency(trace(), "moved").empty
