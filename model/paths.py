# SPDX-License-Identifier: GPL-2.0-only
"""The path of every wakeup of a trace by the model, for reports."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import KernelError
from ..trace import Trace
from .idle import Path
from .kernels import policy_for
from .replay import Certainty, replay


def path_names(trace: Trace) -> np.ndarray[Any, np.dtype[np.object_]] | None:
    """Name of the check that returned the CPU, per row of wakeups, by the policy of the trace's own kernel.

    "undecidable" where an input was not captured, "not placed" where no placement took place. None if the kernel is
    not modelled or HZ is unknown.
    """
    hz = trace.meta.get("hz")
    try:
        policy = policy_for(trace.meta).policy
    except KernelError:
        return None
    if not hz or not trace.rows("wakeups"):
        return None
    names = np.array([p.name.lower().replace("_", " ") for p in Path] + ["undecidable", "not placed"], object)
    parts = []
    for wakeups in trace.chunks("wakeups"):
        results = replay(wakeups, trace.topology, policy, hz)
        code = results["path"].astype(int)
        code[results["certainty"] == Certainty.UNDECIDABLE] = len(Path)
        code[results["certainty"] == Certainty.NOT_PLACED] = len(Path) + 1
        parts.append(names[code])
    return np.concatenate(parts)
