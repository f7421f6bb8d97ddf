# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.analysis.bounces import df_bounces
from wakescope.errors import UsageError
from wakescope.tests.maketrace import task, topology, wake

TASKS = [task(1, b"a"), task(2, b"b"), task(3, b"c")]


def test_a_b_a_is_a_bounce_with_its_dwell(trace):
    made = trace(
        topology(nodes=2, cores=2),
        tasks=TASKS,
        wakeups=[
            wake(1000, 0, 1, 2, 0, 0),
            wake(2000, 0, 1, 2, 0, 2),  # A B
            wake(2500, 0, 1, 3, 0, 1),  # another task's
            wake(5000, 0, 1, 2, 0, 0),  # A: bounce across nodes, dwell 3 us
            wake(6000, 0, 3, 2, 0, 1),
            wake(6500, 0, 1, 2, 0, 0),  # bounce within the LLC, dwell 0.5 us
            wake(7000, 0, 1, 2, 0, 0),
            wake(8000, 0, 1, 2, 0, -1),  # not known: left out
            wake(9000, 0, 1, 2, 0, 0),
        ],
    )
    table = df_bounces(made)
    assert table[["task", "decisions", "bounces", "dwell_min", "dwell_p50"]].to_numpy().tolist() == [
        ["b:2", 7, 2, 0.5, 1.75]
    ]
    assert (table["cross"][0], table["llc"][0]) == (1, 1)
    by_pair = df_bounces(made, by="pair")  # a's own decisions for b: 0 2 0 0 0 0
    assert by_pair[["waker", "wakee", "decisions", "bounces"]].to_numpy().tolist() == [["a:1", "b:2", 6, 1]]
    assert df_bounces(made, task="c").empty


def test_moving_on_is_no_bounce(trace):
    made = trace(tasks=TASKS, wakeups=[wake(10 + i, 0, 1, 2, 0, cpu) for i, cpu in enumerate([0, 1, 1, 0])])
    assert df_bounces(made).empty


def test_an_unknown_grouping_is_refused(trace):
    with pytest.raises(UsageError, match="choose task or pair"):
        df_bounces(trace(), by="cpu")
    assert df_bounces(trace()).empty
