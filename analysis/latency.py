# SPDX-License-Identifier: GPL-2.0-only
"""How long a woken task waited to run (docs/definitions.md, latency)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd

from ..errors import UsageError
from ..trace import Trace
from .distance import NAMES
from .inputs import columns, losses, once, overlaps_loss, switches
from .match import first_after
from .occupancy import BEGINS_WAIT, Sibling, sibling_states
from .placement import path_codes
from .tasks import selected
from .wakeups import df_wakeups

PERCENTILES = (50, 75, 90, 95, 99, 99.5, 99.9)  # schbench's
GROUPS = {"moved": NAMES, "sibling": [s.name.lower() for s in Sibling]}


class Wait(IntEnum):
    """What became of a wait."""

    RUN = 0
    CENSORED = 1
    UNCLEAN = 2


@once
def df_waits(trace: Trace) -> pd.DataFrame:
    """Waits from wakeup to run, one row each, in time order. Needs tables wakeups, switches and tasks.

    Columns: row: row of df_wakeups; wait (ns; so far, if censored); state: Wait; run: row of switches in which it ran,
    run_cpu: where (both -1 if it did not); moved: Distance of the decision; sibling: Sibling.
    """
    trace.require("wakeups", "switches", "tasks")
    wakeups, switched = df_wakeups(trace), switches(trace)
    row = np.flatnonzero(wakeups["outcome"].isin([int(o) for o in BEGINS_WAIT]))
    pid = columns(trace, "wakeups", "wakee_pid")["wakee_pid"].to_numpy()[row]
    begin = wakeups["ts"].to_numpy(np.int64)[row]
    run = first_after(switched["next_pid"].to_numpy(), switched["ts"].to_numpy(), pid, begin)
    task = wakeups["wakee"].to_numpy(np.int64)[row]
    first = ~pd.Series(np.where(run >= 0, run, -1 - task)).duplicated().to_numpy()  # a repeat ends where another does
    row, begin, run = row[first], begin[first], run[first]
    end = np.append(switched["ts"].to_numpy(np.int64), trace.span[1])[run]
    state = np.where(run < 0, Wait.CENSORED, Wait.RUN).astype(np.uint8)
    state[overlaps_loss(losses(trace)["switch"], begin, end)] = Wait.UNCLEAN
    return pd.DataFrame(
        {
            "row": row,
            "wait": np.maximum(end - begin, 0),
            "state": state,
            "run": run,
            "run_cpu": np.append(switched["cpu"].to_numpy().astype(np.int16), np.int16(-1))[run],
            "moved": wakeups["moved"].to_numpy()[row],
            "sibling": sibling_states(trace)[row],
        }
    )


def df_latency(
    trace: Trace, by: str | None = None, replay: pd.DataFrame | None = None, task: str | None = None
) -> pd.DataFrame:
    """Percentiles of the waits of wakees selected by task. Needs tables wakeups, switches and tasks.

    by: None for all together, else 'moved', 'sibling' or 'path' (replay as in df_paths). Columns: the group (named as
    by); waits: complete and censored; censored; unclean: left out; min, p50 … p99.9, max (us, nearest rank, a
    censored wait at its length so far); exact_below (us): percentiles below it are exact, the others lower bounds;
    NaN if all are exact.
    """
    waits = df_waits(trace)
    if task is not None:
        waits = waits[selected(trace, task)[df_wakeups(trace)["wakee"].to_numpy()[waits["row"]]]]
    if by is None:
        return pd.DataFrame([_percentiles(waits["wait"].to_numpy(), waits["state"].to_numpy())])
    codes, names = _groups(trace, waits, by, replay)
    wait, state = waits["wait"].to_numpy(), waits["state"].to_numpy()
    present = np.unique(codes)
    rows = [{by: names[c], **_percentiles(wait[codes == c], state[codes == c])} for c in present]
    return pd.DataFrame(rows, columns=[by, *_percentiles(wait[:0], state[:0])])


def _groups(
    trace: Trace, waits: pd.DataFrame, by: str, replay: pd.DataFrame | None
) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Group code of each wait and the names of the codes."""
    if by in GROUPS:
        return waits[by].to_numpy(), GROUPS[by]
    if by != "path":
        raise UsageError(f"latency cannot be split by {by!r}: choose moved, sibling or path")
    codes, names = path_codes(replay, len(df_wakeups(trace)))
    return codes[waits["row"]], names


def _percentiles(wait: np.ndarray[Any, Any], state: np.ndarray[Any, Any]) -> dict[str, Any]:
    kept = np.sort(wait[state != Wait.UNCLEAN])
    censored = wait[state == Wait.CENSORED]
    n = len(kept)
    rank = {p: -(-round(p * 10) * n // 1000) - 1 for p in PERCENTILES}  # whole numbers: 99.9 % of 1000 is the 999th
    at = {f"p{p:g}": kept[rank[p]] / 1e3 if n else np.nan for p in PERCENTILES}
    return {
        "waits": n,
        "censored": len(censored),
        "unclean": int((state == Wait.UNCLEAN).sum()),
        "min": kept[0] / 1e3 if n else np.nan,
        **at,
        "max": kept[-1] / 1e3 if n else np.nan,
        "exact_below": censored.min() / 1e3 if len(censored) else np.nan,
    }
