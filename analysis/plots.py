# SPDX-License-Identifier: GPL-2.0-only
"""Figures over the tables of a report. Every point is a value of the df_ function a figure names.

Each plot_ function takes a Trace and returns a plotly Figure, without data where there is nothing to draw. All raise
UsageError where plotly or networkx is not installed (the extra "plots"). Names from traces are escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd

from ..errors import UsageError
from ..trace import Trace
from .affine import df_pulls
from .balance import Mover, df_crossings
from .distance import NAMES
from .fights import df_fights
from .flips import df_flips_over_time
from .graph import df_edges
from .latency import PERCENTILES, df_latency
from .numa import UNSEEN, df_observations
from .placement import df_paths
from .stacking import df_stacking_pairs
from .tasks import df_tasks, selected

TASKS = 8  # drawn in one figure
EDGES = 150
PAIRS = 12
BARS = 16
NAMED = 20  # tasks of a graph whose names are written beside them

COLOURS = {
    **dict(zip(NAMES, ("#4c78a8", "#72b7b2", "#54a24b", "#eeca3b", "#e45756", "#bab0ac"), strict=True)),
    **dict(zip([m.name.lower() for m in Mover], ("#4c78a8", "#e45756", "#f58518", "#b279a2", "#9d755d"), strict=True)),
}

Figure = Any  # plotly.graph_objects.Figure


def plot_flips(trace: Trace, task: str | None = None) -> Figure:
    """Highest wakee_flips of each bin over time, of the selected wakers with the highest (df_flips_over_time).

    Needs tables wakeups and tasks.
    """
    go = _plotly()
    table = df_flips_over_time(trace, task=task)
    figure = _figure("Wakee flips over time", "ms", "wakee_flips")
    for code in table["code"].unique()[:TASKS]:
        rows = table[table["code"] == code]
        name = _shown(rows["task"].iloc[0])
        figure.add_trace(go.Scatter(x=rows["start_ms"], y=rows["highest"], name=name, mode="lines+markers"))
    return figure


def plot_graph(trace: Trace, task: str | None = None) -> Figure:
    """Who wakes whom: the busiest pairs with a selected task, as a graph (df_edges). Needs tables wakeups and tasks."""
    go = _plotly()
    import networkx

    chosen, edges = selected(trace, task), df_edges(trace)
    edges = edges[chosen[edges["waker_code"]] | chosen[edges["wakee_code"]]]
    drawn = edges.head(EDGES)
    more = f", the {EDGES} busiest of {len(edges):,} pairs" if len(edges) > EDGES else ""
    figure = _figure(f"Who wakes whom{more}", "", "")
    figure.update_layout(height=640, margin={"t": 60, "b": 20, "l": 20})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    if drawn.empty:
        return figure
    graph = networkx.Graph()
    graph.add_edges_from(drawn[["waker_code", "wakee_code"]].itertuples(index=False))
    place = networkx.spring_layout(graph, seed=1, k=2 / np.sqrt(len(graph)))
    decades = np.log10(drawn["decisions"]).astype(int)
    for decade, rows in drawn.groupby(decades):
        figure.add_trace(_arrows(go, rows, place, f"10^{decade} wakeups and more", 1 + int(decade)))
    figure.add_trace(_nodes(go, trace, drawn, place))
    return figure


def plot_latency(
    trace: Trace, by: str = "moved", replay: pd.DataFrame | None = None, task: str | None = None
) -> Figure:
    """Percentile curves of the time from wakeup to run by 'moved', 'sibling' or 'path' (df_latency).

    replay: as in df_latency. Needs tables wakeups and switches; tasks to select by.
    """
    go = _plotly()
    table = df_latency(trace, by, replay, task)
    table = table[table["waits"] > 0]
    figure = _figure(f"Wakeup to run by {'distance moved' if by == 'moved' else by}", "percentile", "us")
    figure.update_yaxes(type="log")
    points = [f"p{p:g}" for p in PERCENTILES]
    for row in table.to_dict("records"):
        name = f"{row[by]} ({row['waits']:,})"
        colour = COLOURS.get(row[by])
        values = [row[p] or None for p in points]  # no logarithm of 0
        figure.add_trace(
            go.Scatter(x=points, y=values, name=_shown(name), mode="lines+markers", line={"color": colour})
        )
    return figure


def plot_paths(trace: Trace, replay: pd.DataFrame | None = None, task: str | None = None) -> Figure:
    """Decisions by path and distance moved (df_paths; replay as there). Needs tables wakeups and tasks."""
    table = df_paths(trace, replay, task).head(BARS)
    return _stacked("Decisions by path and distance moved", table["path"], table[NAMES])


def plot_pulls(trace: Trace, task: str | None = None) -> Figure:
    """Pulls towards the waker by how far prev_cpu was from it and what was left (df_pulls).

    Needs tables wakeups and tasks.
    """
    table = df_pulls(trace, task)
    table = table[table["pulls"] > 0]
    return _stacked("Pulls: from how far, to how near the waker", table["start"], table[NAMES])


def plot_stacking(trace: Trace, task: str | None = None) -> Figure:
    """Median waits of stacked and other decisions of the pairs where stacking cost most (df_stacking_pairs).

    Needs tables wakeups, switches and tasks.
    """
    go = _plotly()
    table = df_stacking_pairs(trace, task)
    table = table[table["cost_ms"].notna()].head(PAIRS).iloc[::-1]
    pairs = [_shown(f"{a} → {b}") for a, b in zip(table["waker"], table["wakee"], strict=True)]
    figure = _figure("Stacking by pair, dearest on top: median wait", "us", "")
    for column, name, colour in (("other_p50", "not stacked", "#4c78a8"), ("wait_p50", "stacked", "#e45756")):
        if len(table):
            bar = go.Bar(y=pairs, x=table[column], name=name, orientation="h", marker={"color": colour})
            figure.add_trace(bar)
    return figure


def plot_preferred(trace: Trace, task: str | None = None) -> Figure:
    """Preferred node and migrations to other nodes over time, a lane for each selected task with most of these.

    From df_observations and df_crossings. Needs tables numa, wakeups, migrations and tasks.
    """
    go = _plotly()
    seen, crossed = df_observations(trace), df_crossings(trace, task)
    seen = seen[(seen["preferred"] != UNSEEN) & selected(trace, task)[seen["task"]]]
    seen = seen[seen["task"].isin(seen["task"][seen["preferred"] >= 0])]
    seen = seen.assign(at_ms=(seen["ts"].astype(np.int64) - trace.span[0]) / 1e6)
    before = seen.groupby("task")["preferred"].shift()
    after = seen.groupby("task")["preferred"].shift(-1)
    seen = seen[(before != seen["preferred"]) | after.isna()]  # changes, and each task's last record
    counts = crossed["code"].value_counts().add(seen["task"].value_counts(), fill_value=0)
    codes = _most(counts[counts.index.isin(seen["task"])])
    figure = _figure("Preferred node, and migrations to another node", "ms", "node")
    labels = df_tasks(trace)["label"].to_numpy(object)
    nodes = 1 + max((cpu.node for cpu in trace.topology.cpus), default=0)
    lane = {code: (nodes + 1) * i for i, code in enumerate(reversed(codes))}
    for code in codes:
        rows = seen[seen["task"] == code]
        y = (rows["preferred"] + lane[code]).where(rows["preferred"] >= 0)
        line = {"shape": "hv", "width": 5, "color": "#bab0ac"}
        figure.add_trace(
            go.Scatter(
                x=rows["at_ms"], y=y, mode="lines", line=line,
                name="preferred", legendgroup="preferred", showlegend=code == codes[0], text=rows["preferred"],
            )
        )  # fmt: skip
    crossed = crossed[crossed["code"].isin(codes)]
    for mover, rows in crossed.groupby("mover"):
        y = rows["to_nid"] + rows["code"].map(lane)
        text = [f"{_shown(t)} {a} → {b}" for t, a, b in rows[["task", "from_nid", "to_nid"]].itertuples(index=False)]
        marker = {"color": COLOURS[str(mover)], "size": 8}
        figure.add_trace(go.Scatter(x=rows["at_ms"], y=y, mode="markers", name=str(mover), text=text, marker=marker))
    ticks = [(lane[code] + nid, f"{_shown(labels[code])} node {nid}") for code in codes for nid in range(nodes)]
    figure.update_yaxes(tickvals=[t for t, _ in ticks], ticktext=[t for _, t in ticks], title=None)
    return figure


def plot_fights(trace: Trace, task: str | None = None) -> Figure:
    """Cross-node pulls that balancing undid, each from the pull to the way back, a lane for each task (df_fights).

    Needs tables wakeups, migrations and tasks.
    """
    go = _plotly()
    table = df_fights(trace, task=task)
    tasks = _most(table["task"].value_counts())
    table = table[table["task"].isin(tasks)]
    figure = _figure("Pulled to another node, and taken back by", "ms", "")
    for mover, rows in table.groupby("mover"):
        spans = rows[["pulled_ms", "back_ms"]].assign(gap=None).to_numpy(object).ravel()
        lanes = np.repeat([_shown(name) for name in rows["task"]], 3)
        line = {"width": 9, "color": COLOURS[str(mover)]}
        figure.add_trace(go.Scatter(x=spans, y=lanes, mode="lines+markers", line=line, name=str(mover)))
    return figure


def require() -> None:
    """Raise UsageError unless plotly and networkx are installed."""
    lacking = [name for name in ("plotly", "networkx") if find_spec(name) is None]
    if lacking:
        raise UsageError(f"figures need {' and '.join(lacking)}: run 'pip install {' '.join(lacking)}'")


def _plotly() -> Any:
    require()
    import plotly.graph_objects

    return plotly.graph_objects


def _figure(title: str, x: str, y: str) -> Figure:
    figure = _plotly().Figure(layout={"title": title, "template": "plotly_white", "barmode": "group"})
    figure.update_xaxes(title=x)
    figure.update_yaxes(title=y)
    return figure


def _shown(name: str) -> str:
    """A name as plotly shows it to the letter: its labels know some HTML."""
    return html.escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name))


def _most(counts: pd.Series[Any]) -> list[Any]:
    """Keys of the TASKS largest values, largest first."""
    return counts.sort_values(ascending=False, kind="stable").head(TASKS).index.to_list()


def _stacked(title: str, rows: Iterable[str], counts: pd.DataFrame) -> Figure:
    """Horizontal bars, one a row, first on top, of one part per column that is not 0 throughout."""
    go, names = _plotly(), [_shown(str(row)) for row in rows][::-1]
    figure = _figure(title, "decisions", "")
    figure.update_layout(barmode="stack")
    for column in counts.columns[counts.any()]:
        bar = go.Bar(
            y=names, x=counts[column].iloc[::-1], name=column, orientation="h", marker={"color": COLOURS[column]}
        )
        figure.add_trace(bar)
    return figure


def _arrows(go: Any, rows: pd.DataFrame, place: dict[int, Any], name: str, width: int) -> Any:
    """Edges as lines that end in an arrow, short of the wakee."""
    x: list[float | None] = []
    y: list[float | None] = []
    for waker, wakee in rows[["waker_code", "wakee_code"]].itertuples(index=False):
        begin, end = place[waker], place[wakee]
        tip = begin + 0.9 * (end - begin)
        x += [begin[0], tip[0], None]
        y += [begin[1], tip[1], None]
    marker = {"symbol": "arrow", "angleref": "previous", "size": [0, 8 + width, 0] * len(rows), "color": "#9d9d9d"}
    line = {"width": width, "color": "#cccccc"}
    return go.Scatter(x=x, y=y, mode="lines+markers", line=line, marker=marker, name=name, hoverinfo="skip")


def _nodes(go: Any, trace: Trace, edges: pd.DataFrame, place: dict[int, Any]) -> Any:
    """Tasks as circles, the larger the more of these wakeups they take part in."""
    wakes = edges.groupby("waker_code")["decisions"].sum()
    woken = edges.groupby("wakee_code")["decisions"].sum()
    codes = wakes.add(woken, fill_value=0).sort_values(ascending=False).index
    labels = df_tasks(trace)["label"].to_numpy(object)
    wakes, woken = wakes.reindex(codes, fill_value=0), woken.reindex(codes, fill_value=0)
    names = [_shown(labels[code]) for code in codes]
    said = [f"{n}: wakes {a:,}, woken {b:,}" for n, a, b in zip(names, wakes, woken, strict=True)]
    return go.Scatter(
        x=[place[code][0] for code in codes],
        y=[place[code][1] for code in codes],
        mode="markers+text",
        text=[name if i < NAMED else "" for i, name in enumerate(names)],
        textposition="top center",
        hovertext=said,
        hoverinfo="text",
        marker={"size": (5 + 2.5 * np.log10(1 + wakes + woken)).tolist(), "color": "#4c78a8"},
        name="tasks",
    )
