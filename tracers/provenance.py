# SPDX-License-Identifier: GPL-2.0-only
"""What the probes of a tier measure, derive or cannot know, column by column."""

from __future__ import annotations

from .. import schema
from .probes import Plan

MEASURED, DERIVED, UNKNOWN = "measured", "derived", "unknown"

# Computed by the probe from fields it read, as the kernel itself would.
_COMPUTED: tuple[str, ...] = ("wakee_h_load", "waker_h_load", "llc_size", "outcome")
# Tier tracepoint: chosen_cpu comes from the migration, prev_cpu is p.wake_cpu at sched_waking, idle words come from
# switches and the runqueues' counts.
_TRACEPOINT_DERIVED = ("prev_cpu", "chosen_cpu", "ts_exit", "idle", "idle_exit")
_TRACEPOINT_UNKNOWN = (
    *("wake_flags", "sd_flag", "context", "sched_idle", "wakee_flips_exit"),
    *("this_load_exit", "prev_load_exit", "this_nr_running_exit", "prev_nr_running_exit", "sched_idle_exit"),
    *("this_nr_idle_scan_exit", "prev_nr_idle_scan_exit", "this_has_idle_cores_exit", "prev_has_idle_cores_exit"),
)
# Columns of members that some kernels lack.
_SIDES = ("this_{}", "prev_{}", "this_{}_exit", "prev_{}_exit")
_MEMBERS = {
    "task_struct.numa_migrate_retry": (
        *("wakee_preferred_nid", "waker_migrate_retry", "wakee_migrate_retry"),
        *("waker_scan_period", "wakee_scan_period"),
    ),
    "task_struct.recent_used_cpu": ("recent_used_cpu",),
    "sched_domain.avg_scan_cost": ("this_avg_scan_cost",),
    "sched_domain_shared.nr_idle_scan": tuple(side.format("nr_idle_scan") for side in _SIDES),
    "sched_domain_shared.has_idle_cores": tuple(side.format("has_idle_cores") for side in _SIDES),
    "cfs_rq.h_nr_runnable": ("this_h_nr_queued", "this_h_nr_runnable"),
}


def provenance(plan: Plan) -> dict[str, dict[str, str]]:
    """For each table, each column's provenance under this plan: measured, derived or unknown."""
    made = {table: {c.name: MEASURED for c in columns} for table, columns in schema.TABLES.items()}
    wakeups = made["wakeups"]
    wakeups.update(dict.fromkeys(_COMPUTED, DERIVED))
    if plan.tier == "tracepoint":
        wakeups.update(dict.fromkeys(_TRACEPOINT_DERIVED, DERIVED))
        wakeups.update(dict.fromkeys(_TRACEPOINT_UNKNOWN, UNKNOWN))
    if plan.tier == "tracepoint" or not plan.constants["schedstats"]:
        wakeups.update(affine_attempts=UNKNOWN, affine_moves=UNKNOWN)
    for member, columns in _MEMBERS.items():
        if not plan.types.has(member):
            wakeups.update(dict.fromkeys(columns, UNKNOWN))
    return made
