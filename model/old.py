# SPDX-License-Identifier: GPL-2.0-only
"""Kernels from 4.2 to 5.4, most of those the threads are about, as policies.

Each was read in source; the series between them were not all, so only these have names. What such a kernel looks at and
a later one does not keep (the runnable load, groups' shares, sums over nodes and LLCs) is unknown in a trace of a later
kernel: see captured.py.
"""

from __future__ import annotations

from ..errors import ModelError
from .policy import (
    AffineBy,
    AffineCount,
    IdlePull,
    Idlest,
    Load,
    Policy,
    PropClock,
    RecentUsed,
    Scan,
    SchedIdle,
    SharedCache,
    WakeFlags,
    Wide,
)

# v4.2.8 kernel/sched/fair.c: select_task_rq_fair, wake_affine, wake_wide, select_idle_sibling
V4_2 = Policy(
    wake_flags=WakeFlags.SD_FLAG_APART,
    current_cpu=0,
    record_all=1,
    on_cpu_queue=0,
    wide=Wide.ASYMMETRIC,
    wide_in_affine=1,
    task_cpu=1,
    exiting_sync=1,
    affine_by=AffineBy.EFFECTIVE_LOAD,
    idle_pull=IdlePull.ANYWHERE,
    weight_tie=1,
    load=Load.RUNNABLE,
    prev_idle=0,
    sync_runnable=0,
    delay_dequeue=0,
    affine_count=AffineCount.PULLED,
    sched_idle=SchedIdle.NOBODY,
    kthread=0,
    kthread_in_task=0,
    recent_used=RecentUsed.NEVER,
    scan=Scan.GROUPS,
    sis_prop=0,
    sis_util=0,
    prop_clock=PropClock.AVG_IDLE,
    scan_all=1,
    core_in_mask=0,
    smt_in_llc=0,
    smt_skips_prev=0,
    cluster=0,
    numa_placed=1,
    numa_fork_reset=0,
    this_sd=1,
    group_allowed=0,
    idlest=Idlest.LOAD,
    idlest_local=0,
    far_pct=125,
)
V4_3 = V4_2 | {"wide": Wide.SYMMETRIC, "wide_in_affine": 0}  # 63b0e9edceec
V4_12 = V4_3 | {"record_all": 0, "task_cpu": 0, "scan": Scan.CORE_CPU_SMT, "idlest": Idlest.RUNNABLE}  # v4.12.0
V4_13 = V4_12 | {  # v4.12.10, v4.13.4
    "affine_by": AffineBy.NODES,
    "shared_cache": SharedCache.PULL,
    "sis_prop": 1,
}
V4_14_RC = V4_13 | {"affine_by": AffineBy.LLCS, "shared_cache": SharedCache.KEEP}  # 90001d67be2f, a731ebe6f17b
V4_15 = V4_13 | {"affine_by": AffineBy.IDLE_AND_WEIGHT, "shared_cache": SharedCache.ASK}  # v4.14.74, v4.15.0
V4_16 = V4_15 | {  # v4.16.13
    "idle_pull": IdlePull.SHARED,
    "affine_count": AffineCount.PICKED,
    "recent_used": RecentUsed.ON_HIT,
}
V4_19 = V4_16 | {  # v4.19.304
    "exiting_sync": 0,
    "weight_tie": 0,
    "scan_all": 0,
    "numa_placed": 0,
    "idlest_local": 1,
}
V5_4 = V4_19 | {  # v5.4.0-216.236 of Ubuntu
    "sched_idle": SchedIdle.LAST,
    "smt_in_llc": 1,
}

OLD = {
    "4.2": V4_2,
    "4.3": V4_3,
    "4.12": V4_13,
    "4.13": V4_13,
    "4.14-rc": V4_14_RC,
    "4.14": V4_15,
    "4.15": V4_15,
    "4.16": V4_16,
    "4.19": V4_19,
    "5.3": V4_19,  # v5.3.0-76.72 of Ubuntu
    "5.4": V5_4,
}
REWRITTEN = 4  # wake_affine of 4.12.4 is that of 4.13 (815abf5af45f)


def old_kernel(release: str) -> Policy | None:
    """The default policy of a release such as "4.15" or "4.12.0", None if it is none of these.

    A series without a point release is taken at its newest; "4.14-rc" stands for the release candidates between
    90001d67be2f and the wake_affine that v4.14 was released with.
    """
    series, point = release, None
    if release.count(".") == 2:
        series, _, text = release.rpartition(".")
        if not (text.isascii() and text.isdigit()):  # int() takes no ² and the like
            raise ModelError(f"{release!r} is not a kernel release such as 4.15 or 4.12.0")
        point = int(text)
    if series == "4.12" and point is not None and point < REWRITTEN:
        return V4_12
    return OLD.get(series)
