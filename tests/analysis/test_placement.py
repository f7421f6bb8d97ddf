# SPDX-License-Identifier: GPL-2.0-only
import pandas as pd
import pytest
from wakescope.analysis.placement import df_moves, df_outcomes, df_pairs, df_paths
from wakescope.schema import Context, Outcome
from wakescope.tests.maketrace import task, topology, wake


@pytest.fixture
def small(trace):
    """Node 0 is CPUs 0-3 (threads 0-1, 2-3), node 1 is CPUs 4-7."""
    return trace(
        topology(nodes=2, cores=2, threads=2),
        tasks=[task(1, b"client"), task(2, b"server"), task(3, b"other")],
        wakeups=[
            wake(10, 0, 1, 2, 0, 0),
            wake(20, 0, 1, 2, 0, 1),
            wake(30, 0, 1, 2, 1, 4),
            wake(40, 4, 2, 1, 3, 3),
            wake(50, 4, 2, 3, 4, 4, outcome=Outcome.QUEUED),
            wake(60, 4, 2, 3, 4, 5, context=Context.HARDIRQ),
            wake(70, 4, 2, 3, 4, -1, outcome=Outcome.FORK),
        ],
    )


def test_every_wakeup_has_one_outcome(small):
    assert df_outcomes(small).set_index("outcome")["wakeups"].to_dict() == {"PLACED": 5, "QUEUED": 1, "FORK": 1}
    assert df_outcomes(small, task="server").set_index("outcome")["wakeups"].to_dict() == {"PLACED": 3}


def test_moves_count_decisions_by_distance(small):
    moves = df_moves(small).set_index("distance")
    assert moves["moved"].to_dict() == {"cpu": 2, "smt": 2, "llc": 0, "node": 0, "cross": 1, "unknown": 1}
    assert moves["from_waker"].to_dict() == {"cpu": 1, "smt": 2, "llc": 0, "node": 0, "cross": 2, "unknown": 1}
    assert moves["moved_share"].sum() == pytest.approx(1)


def test_pairs_are_placed_wakeups_in_task_context(small):
    pairs = df_pairs(small).set_index(["waker", "wakee"])
    assert pairs["decisions"].to_dict() == {
        ("client:1", "server:2"): 3,
        ("server:2", "client:1"): 1,
    }
    row = pairs.loc[("client:1", "server:2")]
    assert (row["to_waker"], row["to_prev"], row["elsewhere"]) == (1, 0, 2)
    assert (row["cpu"], row["smt"], row["cross"]) == (1, 1, 1)
    assert df_pairs(small, task="other").empty
    assert len(df_pairs(small, task="client")) == 2


def test_paths_are_those_given_and_unknown_without(small):
    assert df_paths(small)["path"].tolist() == ["unknown"]
    given = pd.DataFrame({"path": pd.Categorical(["target", "prev", "scan", "prev", "none", "prev", "none"])})
    paths = df_paths(small, given).set_index("path")
    assert paths["decisions"].to_dict() == {"prev": 3, "target": 1, "scan": 1, "none": 1}
    assert paths.loc["prev", ["cpu", "smt"]].tolist() == [1, 2]


def test_an_empty_trace_has_empty_answers(trace):
    empty = trace()
    assert df_outcomes(empty).empty
    assert df_moves(empty)["moved"].sum() == 0
    assert df_paths(empty).empty
    assert df_pairs(empty).empty
