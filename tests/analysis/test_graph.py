# SPDX-License-Identifier: GPL-2.0-only
from wakescope.analysis.graph import df_components
from wakescope.schema import Context
from wakescope.tests.maketrace import task, wake


def graph(trace, *edges, **more):
    """A trace of so many wakeups for each (waker, wakee, count)."""
    pids = {p for a, b, _ in edges for p in (a, b) if p}
    pairs = [(a, b) for a, b, n in edges for _ in range(n)]
    wakeups = [wake(10 + i, 0, a, b, 0, 0, **more) for i, (a, b) in enumerate(pairs)]
    return trace(tasks=[task(p, b"t") for p in sorted(pids)], wakeups=wakeups)


def shapes(made):
    return df_components(made)[["shape", "tasks", "dispatchers"]].to_numpy().tolist()


def test_two_tasks_that_wake_each_other(trace):
    assert shapes(graph(trace, (1, 2, 9), (2, 1, 9))) == [["1:1", 2, []]]


def test_a_dispatcher_and_its_workers(trace):
    both = [(1, w, 5) for w in (2, 3, 4)] + [(w, 1, 5) for w in (2, 3, 4)]
    assert shapes(graph(trace, *both)) == [["1:N", 4, ["t:1"]]]
    assert df_components(graph(trace, *both))["workers"].tolist() == [["t:2", "t:3", "t:4"]]


def test_many_wakers_of_one_that_wakes_none(trace):
    assert shapes(graph(trace, *[(w, 1, 5) for w in (2, 3, 4)])) == [["N:1", 4, []]]


def test_many_to_many(trace):
    edges = [(a, b, 3) for a in (1, 2, 3) for b in (11, 12, 13)]
    assert shapes(graph(trace, *edges)) == [["N:M", 6, ["t:1", "t:2", "t:3"]]]


def test_a_rare_edge_does_not_join_two_jobs(trace):
    made = graph(trace, (1, 2, 50), (2, 1, 50), (3, 4, 50), (4, 3, 50), (1, 3, 4))
    assert shapes(made) == [["1:1", 2, []], ["1:1", 2, []]]
    assert [len(made) for made in [df_components(made, task="1")]] == [1]


def test_interrupts_and_idle_tasks_wake_nobody_here(trace):
    assert df_components(graph(trace, (1, 2, 5), context=Context.HARDIRQ)).empty
    assert df_components(graph(trace, (0, 2, 5), context=Context.UNKNOWN)).empty
    assert shapes(graph(trace, (1, 2, 5), context=Context.UNKNOWN)) == [["1:1", 2, []]]
