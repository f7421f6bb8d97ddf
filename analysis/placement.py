# SPDX-License-Identifier: GPL-2.0-only
"""Who woke whom, how the CPU was found, and how far the task moved (docs/definitions.md, placement)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..schema import Outcome
from ..trace import Trace
from .distance import NAMES
from .inputs import once
from .tasks import df_tasks, selected
from .wakeups import df_wakeups, pair_codes


def df_outcomes(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Wakeups by outcome; task: of tasks selected as wakee. Needs tables wakeups and tasks.

    Columns: outcome (name); wakeups; share (of all of them).
    """
    outcome = df_wakeups(trace)["outcome"].to_numpy()[_of(trace, task)]
    counts = np.bincount(outcome, minlength=len(Outcome))
    names = [Outcome(i).name if i < len(Outcome) else f"code {i}" for i in range(len(counts))]
    table = pd.DataFrame({"outcome": names, "wakeups": counts})
    table["share"] = table["wakeups"] / max(1, len(outcome))
    return table[table["wakeups"] > 0].sort_values("wakeups", ascending=False, ignore_index=True)


def df_moves(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Decisions by distance. Needs tables wakeups and tasks.

    Columns: distance (name); moved: decisions whose chosen CPU is that far from prev_cpu; moved_share; from_waker:
    decisions whose chosen CPU is that far from the waker's; from_waker_share.
    """
    kept = _of(trace, task) & df_wakeups(trace)["decision"].to_numpy()
    decisions = df_wakeups(trace)[["moved", "reach"]][kept]
    table = pd.DataFrame({"distance": NAMES})
    for column, source in (("moved", "moved"), ("from_waker", "reach")):
        table[column] = np.bincount(decisions[source], minlength=len(NAMES))
        table[f"{column}_share"] = table[column] / max(1, len(decisions))
    return table


def df_paths(trace: Trace, replay: pd.DataFrame | None = None, task: str | None = None) -> pd.DataFrame:
    """Decisions by the check that returned the CPU, and distance moved. Needs tables wakeups and tasks.

    replay: the model's, a row per row of wakeups (its category path is used). Columns: path; decisions; share; then one
    per distance: decisions that moved that far.
    """
    decisions = df_wakeups(trace)
    keep = (_of(trace, task) & decisions["decision"]).to_numpy()
    codes, names = path_codes(replay, len(decisions))
    key = codes[keep] * len(NAMES) + decisions["moved"].to_numpy()[keep]
    counts = np.bincount(key, minlength=len(names) * len(NAMES)).reshape(len(names), len(NAMES))
    table = pd.DataFrame({"path": names, "decisions": counts.sum(axis=1)})
    table[NAMES] = counts
    table = table.loc[table["decisions"] > 0].copy()
    table.insert(2, "share", table["decisions"] / max(1, int(keep.sum())))
    return table.sort_values("decisions", ascending=False, ignore_index=True)


def df_pairs(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """Who woke whom: placed wakeups in task context. Needs tables wakeups and tasks. task: as waker or wakee.

    Columns: waker, wakee (labels); waker_code, wakee_code; decisions; share (of all); to_waker: the chosen CPU
    was the waker's; to_prev: it was prev_cpu and not the waker's; elsewhere; then one per distance: decisions that
    moved that far.
    """
    pairs, chosen = _all_pairs(trace), selected(trace, task)
    return pairs[chosen[pairs["waker_code"]] | chosen[pairs["wakee_code"]]].reset_index(drop=True)


@once
def _all_pairs(trace: Trace) -> pd.DataFrame:
    rows = df_wakeups(trace)
    codes, pairs = pair_codes(trace)
    kept = ((rows["outcome"] == int(Outcome.PLACED)) & rows["by_task"]).to_numpy()
    pair, (cpu, prev, chosen) = codes[kept], (rows[c].to_numpy()[kept] for c in ("cpu", "prev_cpu", "chosen_cpu"))
    moved = np.bincount(pair * len(NAMES) + rows["moved"].to_numpy()[kept], minlength=len(pairs) * len(NAMES))
    moved = moved.reshape(len(pairs), len(NAMES))
    labels = df_tasks(trace)["label"].to_numpy(object)
    table = pd.DataFrame(
        {
            "waker": labels[pairs["waker"]],
            "wakee": labels[pairs["wakee"]],
            "waker_code": pairs["waker"],
            "wakee_code": pairs["wakee"],
            "decisions": moved.sum(axis=1),
            "share": moved.sum(axis=1) / max(1, len(pair)),
            "to_waker": np.bincount(pair[chosen == cpu], minlength=len(pairs)),
            "to_prev": np.bincount(pair[(chosen == prev) & (chosen != cpu)], minlength=len(pairs)),
        }
    )
    table["elsewhere"] = table["decisions"] - table["to_waker"] - table["to_prev"]
    table[NAMES] = moved
    table = table.loc[table["decisions"] > 0]
    return table.sort_values("decisions", ascending=False, kind="stable", ignore_index=True)


def path_codes(replay: pd.DataFrame | None, rows: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[str]]:
    """Code of each wakeup's path and the codes' names; without a replay the one name "unknown"."""
    if replay is None:
        return np.zeros(rows, np.int64), ["unknown"]
    return replay["path"].cat.codes.to_numpy().astype(np.int64), list(replay["path"].cat.categories)


def _of(trace: Trace, task: str | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which wakeups are of a selected wakee."""
    return selected(trace, task)[df_wakeups(trace)["wakee"]]
