# SPDX-License-Identifier: GPL-2.0-only
import builtins
import importlib.util

import pytest
from wakescope.analysis import plots
from wakescope.analysis.report import build_report
from wakescope.errors import UsageError
from wakescope.schema import NumaEvent
from wakescope.tests.maketrace import mask, switch, task, topology, wake

pytest.importorskip("plotly")
pytest.importorskip("networkx")

MS = 1_000_000
TASKS = [task(1, b"a"), task(2, b"<b>"), task(3, b"c"), task(90, b"migration/0")]
EVERY = [
    plots.plot_flips, plots.plot_graph, plots.plot_latency, plots.plot_paths, plots.plot_pulls, plots.plot_stacking,
    plots.plot_preferred, plots.plot_fights,
]  # fmt: skip


def points(scatter):
    return list(zip(scatter.x, scatter.y, strict=True))


@pytest.mark.parametrize("plot", EVERY)
def test_nothing_to_draw_is_an_empty_figure_with_its_title(trace, plot):
    figure = plot(trace(numa=[]))
    assert not figure.data
    assert figure.layout.title.text


@pytest.mark.parametrize("plot", EVERY)
def test_a_task_can_be_chosen(trace, plot):
    made = trace(tasks=TASKS, numa=[])
    plot(made, task="c")
    with pytest.raises(UsageError, match="no task"):
        plot(made, task="nobody")


def test_flips_are_the_highest_of_each_bin_of_the_highest_wakers(trace):
    flips = {"waker_decay_ts": 1_000_000, "waker_last_wakee": 2}
    wakeups = [wake(ts * MS, 0, 1, 2, 0, 0, waker_flips=n, **flips) for ts, n in ((0, 5), (1, 3), (99, 7))]
    wakeups += [wake(50 * MS + i, 0, 100 + i, 2, 0, 0, waker_flips=20 + i, **flips) for i in range(plots.TASKS)]
    made = trace(tasks=TASKS, meta={"start_ts": 0, "stop_ts": 100 * MS - 1}, wakeups=wakeups)
    figure = plots.plot_flips(made)
    assert [s.name for s in figure.data] == [f"?:{100 + i}" for i in reversed(range(plots.TASKS))]  # a is the ninth
    (line,) = plots.plot_flips(made, task="a").data
    assert points(line) == [(0, 5), (98, 7)]


def test_the_graph_has_an_arrow_for_each_pair_and_a_circle_for_each_task(trace):
    wakeups = [wake(10 + i, 0, 1, 2, 0, 0) for i in range(15)] + [wake(90 + i, 0, 1, 3, 0, 0) for i in range(5)]
    figure = plots.plot_graph(trace(tasks=TASKS, wakeups=wakeups))
    *arrows, nodes = figure.data
    assert {s.name: len(s.x) // 3 for s in arrows} == {"10^0 wakeups and more": 1, "10^1 wakeups and more": 1}
    assert nodes.hovertext == ("a:1: wakes 20, woken 0", "&lt;b&gt;:2: wakes 0, woken 15", "c:3: wakes 0, woken 5")
    again = plots.plot_graph(trace(tasks=TASKS, wakeups=wakeups))
    assert again.data[-1].x == nodes.x  # the layout is the same every time


def test_curves_are_the_percentiles_of_the_table(trace):
    made = trace(
        topology(cores=2),
        tasks=TASKS,
        wakeups=[wake(1000, 0, 1, 2, 1, 1), wake(9000, 0, 1, 3, 0, 1)],
        switches=[switch(3000, 1, 0, 2), switch(8000, 1, 2, 0), switch(14_000, 1, 0, 3)],
    )
    figure = plots.plot_latency(made)
    assert {s.name: set(s.y) for s in figure.data} == {"cpu (1)": {2.0}, "llc (1)": {5.0}}
    assert figure.data[0].x == ("p50", "p75", "p90", "p95", "p99", "p99.5", "p99.9")


def test_pulls_are_bars_by_start_with_a_part_for_each_end(trace):
    made = trace(
        topology(nodes=2, cores=2, threads=2),
        tasks=TASKS,
        wakeups=[wake(10, 0, 1, 2, 4, 1), wake(20, 0, 1, 2, 4, 0), wake(30, 0, 1, 2, 2, 0), wake(40, 0, 1, 2, 0, 2)],
    )
    parts = {s.name: dict(zip(s.y, s.x, strict=True)) for s in plots.plot_pulls(made).data}
    assert parts == {"cpu": {"cross": 1, "llc": 1}, "smt": {"cross": 1, "llc": 0}}


def test_stacking_compares_the_same_pairs_waits(trace):
    def run(ts, wait, idle):
        wakeup = wake(ts, 0, 1, 2, 1, 1, has_masks=2, idle=mask(idle))
        return wakeup, [switch(ts + wait, 1, 3, 2), switch(ts + wait + 1, 1, 2, 3)]

    parts = [run(10_000, 1000, [1]), run(30_000, 9000, [0])]
    made = trace(
        topology(cores=2), tasks=TASKS, wakeups=[w for w, _ in parts], switches=[s for _, p in parts for s in p]
    )
    bars = {s.name: dict(zip(s.y, s.x, strict=True)) for s in plots.plot_stacking(made).data}
    assert bars == {"not stacked": {"a:1 → &lt;b&gt;:2": 1.0}, "stacked": {"a:1 → &lt;b&gt;:2": 9.0}}


@pytest.fixture
def fought(trace):
    """b is pulled from node 1 to node 0 at 100 ms, prefers node 1 from 120 ms, and is moved back at 150 ms."""

    def fault(ts, nid):
        return {"ts": ts, "pid": 2, "event": NumaEvent.FAULT, "preferred_nid": nid, "migrate_retry": 9}

    return trace(
        topology(nodes=2, cores=2),
        meta={"start_ts": 0, "stop_ts": 500 * MS},
        tasks=TASKS,
        wakeups=[wake(100 * MS, 0, 1, 2, 2, 1, wakee_cpu=2, wakee_preferred_nid=0)],
        migrations=[{"ts": 150 * MS, "cpu": 0, "pid": 2, "by_pid": 90, "orig_cpu": 1, "dest_cpu": 3}],
        numa=[
            fault(90 * MS, 0), fault(110 * MS, 0), fault(120 * MS, 1),
            {"ts": 149 * MS, "pid": 2, "event": NumaEvent.MOVE, "src_cpu": 1, "dst_cpu": 3, "preferred_nid": 1},
            fault(400 * MS, 1),
        ],
    )  # fmt: skip


def test_preferred_nodes_and_who_crossed(fought):
    lines = {s.name: points(s) for s in plots.plot_preferred(fought).data}
    assert lines == {"preferred": [(90, 0), (120, 1), (400, 1)], "wakeup": [(100, 0)], "numa": [(150, 1)]}
    assert plots.plot_preferred(fought).layout.yaxis.ticktext == ("&lt;b&gt;:2 node 0", "&lt;b&gt;:2 node 1")


def test_a_fight_is_a_line_from_the_pull_to_the_way_back(fought):
    (line,) = plots.plot_fights(fought).data
    assert (line.name, points(line)[:2]) == ("numa", [(100, "&lt;b&gt;:2"), (150, "&lt;b&gt;:2")])


def test_without_plotly_the_error_says_what_to_install(trace, monkeypatch):
    monkeypatch.setattr(plots, "find_spec", lambda name: None if name == "plotly" else importlib.util.find_spec(name))
    with pytest.raises(UsageError, match=r"^figures need plotly: run 'pip install plotly'$"):
        plots.plot_flips(trace())


def test_a_report_without_figures_asks_for_none_of_it(trace, monkeypatch):
    ordinary = builtins.__import__

    def refuse(name, *rest, **more):
        assert name.split(".")[0] not in ("plotly", "networkx")
        return ordinary(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    build_report(trace())
