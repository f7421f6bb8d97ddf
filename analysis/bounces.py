# SPDX-License-Identifier: GPL-2.0-only
"""Tasks that wakeups send from A to B and back to A (docs/definitions.md, affine migrations)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..errors import UsageError
from ..trace import Trace
from .distance import NAMES, distance
from .inputs import losses, overlaps_loss
from .match import next_same
from .tasks import df_tasks, selected
from .wakeups import df_wakeups, pair_codes


def df_bounces(trace: Trace, by: str = "task", task: str | None = None) -> pd.DataFrame:
    """Bounces of each wakee (by 'task') or within each waker and wakee's own decisions ('pair'), most first.

    Needs tables wakeups and tasks; of selected wakees. Columns: task, or waker and wakee (labels); decisions; bounces;
    bounce_share; dwell_p50, dwell_min (us, from the choice of B to the choice of A); unclean: left out, because a
    decision between may be lost; then one per distance: bounces whose A and B are that far apart.
    """
    if by not in ("task", "pair"):
        raise UsageError(f"bounces cannot be counted by {by!r}: choose task or pair")
    rows = df_wakeups(trace)
    kept = (rows["decision"] & (rows["chosen_cpu"] >= 0)).to_numpy() & selected(trace, task)[rows["wakee"]]
    codes, pairs = pair_codes(trace)
    key = (rows["wakee"].to_numpy(np.int64) if by == "task" else codes)[kept]
    cpu, ts = rows["chosen_cpu"].to_numpy()[kept], rows["ts"].to_numpy(np.int64)[kept]
    away = next_same(key)
    back = np.append(away, -1)[away]
    bounced = np.flatnonzero((away >= 0) & (back >= 0) & (cpu == cpu[back]) & (cpu != cpu[away]))
    away, back = away[bounced], back[bounced]
    clean = ~overlaps_loss(losses(trace)["wakeup"], ts[bounced], ts[back])
    found = pd.DataFrame({"key": key[bounced], "clean": clean, "dwell": (ts[back] - ts[away]) / 1e3})
    found["dwell"] = found["dwell"].where(clean)
    apart = distance(trace.topology, cpu[bounced], cpu[away])
    table = pd.DataFrame(found.groupby("key")["dwell"].agg(bounces="count", dwell_p50="median", dwell_min="min"))
    table.insert(0, "decisions", np.bincount(key, minlength=1)[table.index])
    table.insert(2, "bounce_share", table["bounces"] / table["decisions"])
    table["unclean"] = (~found["clean"]).groupby(found["key"]).sum()
    counts = np.zeros((len(table), len(NAMES)), np.int64)
    np.add.at(counts, (np.searchsorted(table.index, found["key"][clean]), apart[clean]), 1)
    table[NAMES] = counts
    labels = df_tasks(trace)["label"].to_numpy(object)
    if by == "task":
        table.insert(0, "task", labels[table.index])
    else:
        table.insert(0, "waker", labels[pairs["waker"].to_numpy()[table.index]])
        table.insert(1, "wakee", labels[pairs["wakee"].to_numpy()[table.index]])
    return table.sort_values("bounces", ascending=False, kind="stable", ignore_index=True)
