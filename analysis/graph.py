# SPDX-License-Identifier: GPL-2.0-only
"""The structure of who wakes whom: 1:1, 1:N, N:1, N:M components and their dispatchers (docs/definitions.md, flips)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..trace import Trace
from .placement import df_pairs
from .tasks import df_tasks, selected

EDGE = 0.1  # of the busiest pair at either end


def df_edges(trace: Trace) -> pd.DataFrame:
    """Pairs that make up the graph. Needs tables wakeups and tasks. Columns: df_pairs', and component
    (code).
    """
    pairs = df_pairs(trace)
    busiest_waker = pairs.groupby("waker_code")["decisions"].transform("max")
    busiest_wakee = pairs.groupby("wakee_code")["decisions"].transform("max")
    edges = pairs[pairs["decisions"] >= EDGE * np.maximum(busiest_waker, busiest_wakee)]
    root = list(range(len(df_tasks(trace))))

    def find(code: int) -> int:
        while root[code] != code:
            root[code] = code = root[root[code]]
        return code

    for a, b in edges[["waker_code", "wakee_code"]].to_numpy().tolist():
        root[find(b)] = find(a)
    return edges.assign(component=[find(code) for code in edges["waker_code"].tolist()]).reset_index(drop=True)


def df_components(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Connected components with a selected task, busiest first. Needs tables wakeups and tasks.

    Columns: shape: 1:1, 1:N, N:1 or N:M; tasks; edges; decisions; dispatchers: list of the labels of those that wake at
    least half of the others (none for 1:1 and N:1); workers: of the others.
    """
    chosen = selected(trace, task)
    labels = df_tasks(trace)["label"].to_numpy(object)
    rows = []
    for _, edges in df_edges(trace).groupby("component"):
        members = pd.unique(edges[["waker_code", "wakee_code"]].to_numpy().ravel())
        if not chosen[members].any():
            continue
        shape, leaders = _shape(edges, members)
        names = [labels[m] for m in leaders], [labels[m] for m in members if m not in leaders]
        rows.append((shape, len(members), len(edges), int(edges["decisions"].sum()), *names))
    table = pd.DataFrame(rows, columns=["shape", "tasks", "edges", "decisions", "dispatchers", "workers"])
    return table.sort_values("decisions", ascending=False, kind="stable", ignore_index=True)


def _shape(edges: pd.DataFrame, members: np.ndarray[Any, Any]) -> tuple[str, set[int]]:
    """Shape of one component, and its dispatchers."""
    wakes: dict[int, set[int]] = {m: set() for m in members.tolist()}
    woken: dict[int, set[int]] = {m: set() for m in members.tolist()}
    for a, b in edges[["waker_code", "wakee_code"]].to_numpy().tolist():
        if a != b:
            wakes[a].add(b)
            woken[b].add(a)
    others = len(members) - 1
    if others <= 1:
        return "1:1", set()
    leaders = {m for m in wakes if 2 * len(wakes[m]) >= others}
    for hub in wakes:
        if all(wakes[m] | woken[m] <= {hub} for m in wakes if m != hub):
            return ("1:N", {hub}) if hub in leaders else ("N:1", set())
    return "N:M", leaders
