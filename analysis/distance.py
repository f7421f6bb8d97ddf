# SPDX-License-Identifier: GPL-2.0-only
"""How far apart two CPUs are, in the scheduler's own steps (docs/definitions.md, distance)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from ..topology import Topology

Codes = np.ndarray[Any, np.dtype[np.uint8]]


class Distance(IntEnum):
    """Steps between two CPUs, nearest first."""

    CPU = 0
    SMT = 1
    LLC = 2
    NODE = 3
    CROSS = 4
    UNKNOWN = 5


NAMES = [d.name.lower() for d in Distance]


def matrix(topology: Topology) -> Codes:
    """Distance codes between all CPUs: shape (nr_cpus + 1, nr_cpus + 1), uint8.

    The last row and column are UNKNOWN, as are CPUs the topology does not have.
    """
    core, llc, node = (topology.by_cpu(a) for a in ("core", "llc", "node"))
    n = topology.nr_cpus
    far = np.full((n + 1, n + 1), Distance.CROSS, np.uint8)
    inner = far[:n, :n]
    inner[node[:, None] == node] = Distance.NODE
    inner[llc[:, None] == llc] = Distance.LLC
    inner[core[:, None] == core] = Distance.SMT
    np.fill_diagonal(inner, Distance.CPU)
    absent = np.append(core < 0, True)
    far[absent, :] = Distance.UNKNOWN
    far[:, absent] = Distance.UNKNOWN
    return far


def distance(topology: Topology, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Codes:
    """Distance codes between CPUs a and b: integers of one shape, -1 or out of range is UNKNOWN. Returns uint8."""
    n = topology.nr_cpus
    a, b = (np.where((c < 0) | (c >= n), n, c) for c in (a, b))
    return matrix(topology)[a, b]
