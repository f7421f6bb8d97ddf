# SPDX-License-Identifier: GPL-2.0-only
"""The replay of a trace by the policy of its own kernel, as reports take it: one row per wakeup, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..errors import ModelError
from ..trace import Trace
from .affine import Affine
from .idle import Path
from .kernels import policy_for
from .loads import Loads
from .replay import Certainty, replay

GRANTS = (Affine.THIS_IDLE, Affine.SYNC, Affine.SYNC_LOAD, Affine.WEIGHT_THIS)
REFUSALS = (Affine.BOTH_IDLE, Affine.PREV_IDLE, Affine.WEIGHT_PREV, Affine.UNDECIDED)


def df_replay(trace: Trace) -> pd.DataFrame | None:
    """What the model says of each wakeup, row by row as in the table; None if the kernel is not modelled or HZ unknown.

    Columns: path (category): the check that returned the CPU, "undecidable" where an input was not captured, "not
    placed" where no placement took place; rule (category): of wake_affine(), or why it was not asked; grant (int8): 1
    if that gives the waker's CPU, 0 if prev_cpu, -1 if it was not asked; cpu (int16): -1 unless decided.
    """
    hz = trace.meta.get("hz")
    try:
        policy = policy_for(trace.meta).policy
    except ModelError:
        return None
    if not hz or not trace.rows("wakeups"):
        return None
    loads = Loads.of(trace)
    parts = [replay(wakeups, trace.topology, policy, hz, loads) for wakeups in trace.chunks("wakeups")]
    names = ("path", "certainty", "affine", "cpu")
    path, certainty, affine, cpu = (np.concatenate([p[name] for p in parts]) for name in names)
    path[certainty == Certainty.UNDECIDABLE] = len(Path)
    path[certainty == Certainty.NOT_PLACED] = len(Path) + 1
    affine[certainty >= Certainty.UNDECIDABLE] = Affine.NONE
    grant = np.full(len(affine), -1, np.int8)
    grant[np.isin(affine, GRANTS)] = 1
    grant[np.isin(affine, REFUSALS)] = 0
    return pd.DataFrame(
        {
            "path": _named(path, [*_names(Path), "undecidable", "not placed"]),
            "rule": _named(affine, _names(Affine)),
            "grant": grant,
            "cpu": cpu,
        }
    )


def _names(codes: Any) -> list[str]:
    return [code.name.lower().replace("_", " ") for code in codes]


def _named(codes: np.ndarray[Any, Any], names: list[str]) -> Any:
    return pd.Categorical.from_codes(codes.astype(np.int8), dtype=pd.CategoricalDtype(names))
