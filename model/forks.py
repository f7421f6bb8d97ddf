# SPDX-License-Identifier: GPL-2.0-only
"""Whether forks and execs leave their node, by find_idlest_group of 4.12 to 4.16, with and without its SD_NUMA rule.

Where domains of nodes are nested, a group of the widest stands for the node. The loads of groups are not captured.
Where nothing runs but on the forking CPU, they follow from its load alone; that is the case the patch was written for,
and the only one decided here. The load is the average a later kernel keeps, so this is an approximation, and only made
when asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum

import numpy as np

from ..analysis.occupancy import idle_words
from ..schema import NEVER, NEVER64, Outcome
from ..topology import Topology
from ..trace import Trace
from .compiled import compiled
from .policy import Policy
from .topo import Row, mask_of

CAPACITY_SCALE = 1024


class Leaves(IntEnum):
    """What find_idlest_group says at the domain that spans the nodes."""

    STAYS = 0
    GOES = 1
    OPEN = 2  # it depends on the averages, which include what sleepers left behind


@dataclass
class Forks:
    """Forks and execs: stays: the widest domain that spans nodes does not send it to another group; goes: it does;
    undecided: the rule needs loads that are not known.
    """

    stays: int = 0
    goes: int = 0
    undecided: int = 0

    def to_json(self) -> dict[str, int]:
        """stays, goes, undecided."""
        return asdict(self)


@compiled
def find_idlest_group(local_rule: int, imbalance_pct: int, this_load: int, least_load: int) -> Leaves:
    """Leaves, at an SD_NUMA domain: runnable loads of this node, and the least of the others, per 1024 of capacity.

    local_rule: with 2c83362734da (v4.17), which stays if the other load with the imbalance is not below this one.
    """
    imbalance = CAPACITY_SCALE * (imbalance_pct - 100) // 100
    if local_rule and least_load + imbalance >= this_load:
        return Leaves.STAYS
    if least_load > this_load + imbalance:
        return Leaves.STAYS
    if this_load < least_load + imbalance:
        return Leaves.OPEN
    return Leaves.GOES


def forks(trace: Trace, policy: Policy) -> Forks:
    """Forks and execs of a trace under a policy with Idlest.RUNNABLE. Needs tables wakeups, switches and tasks.

    Execs are decided on spare capacity first, which is not captured: they count as undecided where nodes are spanned.
    """
    found = Forks()
    rows = trace.array("wakeups", ["cpu", "outcome", "this_load", "this_capacity", "allowed"])
    idle, known = idle_words(trace)
    for row in np.flatnonzero(np.isin(rows["outcome"], (Outcome.FORK, Outcome.EXEC))):
        cpu = int(rows["cpu"][row])
        span, node = _across(trace.topology, cpu)
        whole, here = (mask_of(cpus, trace.topology.words) for cpus in (span, node))
        alone = whole & ~mask_of([cpu], trace.topology.words)
        if not (rows["allowed"][row] & whole & ~here).any():
            found.stays += 1
        elif rows["outcome"][row] != Outcome.FORK or (alone & ~(idle[row] & known[row])).any():
            found.undecided += 1
        else:
            verdict = _verdict(policy, rows[row], len(node))
            found.stays += verdict == Leaves.STAYS
            found.goes += verdict == Leaves.GOES
            found.undecided += verdict == Leaves.OPEN
    return found


def _verdict(policy: Policy, row: Row, cpus: int) -> Leaves:
    """For a fork from a CPU that is the only busy one of all; cpus: of its node, taken to be of one capacity."""
    if row["this_load"] == NEVER64 or row["this_capacity"] in (0, NEVER):
        return Leaves.OPEN
    load = int(row["this_load"]) * CAPACITY_SCALE // (int(row["this_capacity"]) * cpus)
    return find_idlest_group(int(policy.idlest_local), int(policy.far_pct), load, 0)


def _across(topology: Topology, cpu: int) -> tuple[list[int], list[int]]:
    """CPUs of the widest domain of a CPU that spans nodes and balances forks, and of its own group there: the domain
    below. Twice the CPU itself where there is no such domain.
    """
    chain = topology.chain(cpu)
    levels = [i for i, sd in enumerate(chain) if "NUMA" in sd.flags and "BALANCE_FORK" in sd.flags]
    if not levels:
        return [cpu], [cpu]
    return chain[levels[-1]].span, chain[levels[-1] - 1].span if levels[-1] else [cpu]
