# SPDX-License-Identifier: GPL-2.0-only
"""When wake_wide() triggers, how near each pair is to it, and the LLC counted in cores (docs/definitions.md, flips)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..schema import Outcome
from ..topology import Topology
from ..trace import Trace
from .flips import df_flips
from .inputs import columns, once
from .tasks import df_tasks, selected
from .wakeups import df_wakeups, pair_codes

Bools = np.ndarray[Any, np.dtype[np.bool_]]


def is_wide(
    waker_flips: np.ndarray[Any, Any], wakee_flips: np.ndarray[Any, Any], factor: np.ndarray[Any, Any]
) -> Bools:
    """wake_wide() of 4.3 and later on arrays of uint32: the product wraps as the kernel's does."""
    master, slave = np.maximum(waker_flips, wakee_flips), np.minimum(waker_flips, wakee_flips)
    wide: Bools = ~((slave < factor) | (master < slave * factor))
    return wide


def llc_cores(topology: Topology) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """LLC size of each CPU in cores, uint32 (nr_cpus,): sched_groups of its LLC domain if read, else sysfs's cores."""
    core, llc = topology.by_cpu("core"), topology.by_cpu("llc")
    cores = np.array([len(np.unique(core[llc == each])) for each in llc], np.uint32)
    for cpu in range(topology.nr_cpus):
        shared = [d for d in topology.chain(cpu) if "SHARE_LLC" in d.flags]
        if shared and shared[-1].groups:
            cores[cpu] = shared[-1].groups
    return cores


@once
def df_verdicts(trace: Trace) -> pd.DataFrame:
    """wake_wide() of each wakeup that reached it. Needs tables wakeups and tasks.

    Columns: row: row of wakeups; wide (bool); margin: min(slave/factor, master/(slave*factor)), wide at 1 or more;
    wide_in_cores: the verdict with the waker's LLC counted in cores.
    """
    row = np.flatnonzero(df_wakeups(trace)["outcome"] == int(Outcome.PLACED))
    rows = columns(trace, "wakeups", "cpu", "wakee_flips", "llc_size").iloc[row]
    waker, wakee, factor = (
        df_flips(trace)["after"].to_numpy()[row],
        rows["wakee_flips"].to_numpy(),
        rows["llc_size"].to_numpy(),
    )
    master, slave = np.maximum(waker, wakee).astype(np.float32), np.minimum(waker, wakee).astype(np.float32)
    margin = np.minimum(slave / np.maximum(factor, 1), master / np.maximum(slave * factor, 1))
    return pd.DataFrame(
        {
            "row": row,
            "wide": is_wide(waker, wakee, factor),
            "margin": margin,
            "wide_in_cores": is_wide(waker, wakee, llc_cores(trace.topology)[rows["cpu"]]),
        }
    )


def df_wide(trace: Trace, task: str | None = None) -> pd.DataFrame:
    """wake_wide() by pair, of pairs with a selected task. Needs tables wakeups and tasks.

    Columns: waker, wakee (labels); decisions; wide; wide_share; margin_p50, margin_max; wide_in_cores: wide with the
    LLC counted in cores; changed: decisions whose verdict then differs.
    """
    verdicts = df_verdicts(trace)
    codes, pairs = pair_codes(trace)
    chosen = selected(trace, task)
    grouped = verdicts.assign(changed=verdicts["wide"] != verdicts["wide_in_cores"]).groupby(codes[verdicts["row"]])
    table: pd.DataFrame = grouped.agg(
        decisions=("wide", "size"),
        wide=("wide", "sum"),
        margin_p50=("margin", "median"),
        margin_max=("margin", "max"),
        wide_in_cores=("wide_in_cores", "sum"),
        changed=("changed", "sum"),
    )
    table.insert(2, "wide_share", table["wide"] / table["decisions"])
    waker, wakee = pairs["waker"].to_numpy()[table.index], pairs["wakee"].to_numpy()[table.index]
    labels = df_tasks(trace)["label"].to_numpy(object)
    table.insert(0, "waker", labels[waker])
    table.insert(1, "wakee", labels[wakee])
    table = table.loc[chosen[waker] | chosen[wakee]]
    return table.sort_values(["wide", "margin_max"], ascending=False, kind="stable", ignore_index=True)
