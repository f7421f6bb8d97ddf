# SPDX-License-Identifier: GPL-2.0-only
"""What a trace of one kernel can tell a policy of another.

A fact that only the policy's kernel would have kept is made unknown before the replay, so that a decision counts as
decided only where every value of it gives the same CPU. Two of them can be approximated on request, never otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..schema import NEVER64
from .policy import AffineBy, Idlest, Load, NumaSpare, Policy, PropClock
from .topo import Array

LOADS = ("this_load", "prev_load", "this_load_exit", "prev_load_exit")


@dataclass(frozen=True)
class Captured:
    """How to read a trace for a policy: the policy with the trace's own encodings, columns to forget, and why."""

    policy: Policy
    forget: dict[str, int] = field(default_factory=dict)  # column -> the value that says unknown
    notes: tuple[str, ...] = ()

    def rows(self, wakeups: Array) -> Array:
        """Rows of schema.WAKEUPS with what this policy must not know taken out; the same rows if there is nothing."""
        if not self.forget:
            return wakeups
        rows = wakeups.copy()
        for column, unknown in self.forget.items():
            rows[column] = unknown
        return rows


def captured(policy: Policy, own: Policy, approximate: bool = False) -> Captured:
    """How a trace recorded under policy own is read for another policy.

    approximate: take the load averages a later kernel compares for the runnable loads an earlier one does, tasks' loads
    for the weights of effective_load(), and a forking CPU's load for that of its node if no other CPU is busy.
    """
    forget: dict[str, int] = {}
    notes: list[str] = []
    if policy.load != own.load:
        kinds = {Load.AVERAGE: "load averages", Load.RUNNABLE: "runnable loads"}
        what = f"it compares {kinds[Load(policy.load)]}, the trace has {kinds[Load(own.load)]}"
        if approximate:
            notes.append(f"APPROXIMATION: {what}, taken as if they were these")
        else:
            forget |= dict.fromkeys(LOADS, NEVER64)
            notes.append(f"{what}: decided only where any load gives the same CPU")
    if policy.affine_by == AffineBy.EFFECTIVE_LOAD:
        what = "effective_load() needs weights and the shares of groups, which are not captured"
        if approximate:
            notes.append(f"APPROXIMATION: {what}: tasks' loads are taken for them, as in the root group")
        else:
            forget["wakee_h_load"] = NEVER64
            notes.append(f"{what}: decided only where any of them gives the same CPU")
    if policy.affine_by in (AffineBy.NODES, AffineBy.LLCS):
        of = "nodes" if policy.affine_by == AffineBy.NODES else "LLCs"
        notes.append(f"loads of whole {of} are not captured: decided only where any of them gives the same CPU")
    if policy.sis_prop and (not own.sis_prop or policy.prop_clock != own.prop_clock):
        forget["this_avg_scan_cost"] = NEVER64
        notes.append("the traced kernel does not keep the cost of scans that limits SIS_PROP: any limit is allowed for")
    elif policy.sis_prop and policy.prop_clock == PropClock.WAKE_AVG_IDLE:
        notes.append("wake_avg_idle, which limits SIS_PROP, is not captured: any limit is allowed for")
    if policy.sis_util and not own.sis_util:
        forget |= {f"{side}_nr_idle_scan{when}": -1 for side in ("this", "prev") for when in ("", "_exit")}
        notes.append("the traced kernel has no nr_idle_scan: any limit of the scan is allowed for")
    if policy.idlest != own.idlest:
        what = "it places forks and execs by loads of groups, which are not captured"
        if approximate and policy.idlest == Idlest.RUNNABLE:
            notes.append(f"APPROXIMATION: {what}: decided by one CPU's load where all the others are idle")
        else:
            notes.append(f"{what}: undecidable")
    elif policy.numa_spare >= NumaSpare.IMB_NUMA_NR > own.numa_spare:
        notes.append("the traced kernel has no imb_numa_nr: derived from the domains")
    edit = {"wake_flags": own.wake_flags}
    if own.delay_dequeue and not policy.delay_dequeue:
        edit["sync_runnable"] = 1  # without delayed dequeue its runqueue would not hold these sleepers
    return Captured(policy | edit, forget, tuple(notes))
