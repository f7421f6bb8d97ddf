# SPDX-License-Identifier: GPL-2.0-only
"""What one kernel's wakeup placement does, as features.

Stable series change inside themselves, so the model asks for features and never for a version; kernels.py says which
release has which. A patch is an edit of a Policy: `kernel("6.12") | {"prev_idle": False}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class WakeFlags(IntEnum):
    """How select_task_rq_fair's wake_flags are numbered (kernel/sched/sched.h, WF_*)."""

    SD_FLAG_APART = 0  # WF_SYNC 1; the kind of placement is the sd_flag argument
    SD_FLAG_WITHIN = 1  # WF_SYNC 0x10; the low nibble is the kind of placement (3aef1551e942, v5.11)


class AffineCount(IntEnum):
    """When wake_affine counts nr_wakeups_affine."""

    PICKED = 0  # when it decided for either CPU
    PULLED = 1  # only when it decided for the waker's CPU (39afe5d6fc59, v6.4)


class SchedIdle(IntEnum):
    """Who may take a CPU that runs only SCHED_IDLE tasks as if it were idle (sched_idle_cpu, 3c29e651e16d, v5.4)."""

    ANY = 0
    NOT_SCHED_IDLE = 1  # any but a SCHED_IDLE wakee (choose_sched_idle_rq, fd54d81c2c0e, v7.1)


class RecentUsed(IntEnum):
    """When p.recent_used_cpu is replaced by prev, and which CPU the affinity test of the candidate looks at."""

    ON_HIT = 0  # replaced when taken (v4.16 to v5.14)
    PREV_TESTED = 1  # replaced first, so the test reads prev instead (89aafd67f28c, v5.15)
    ALWAYS = 2  # replaced first, the old value is tested (ae2ad293d6be, v6.5)


class Scan(IntEnum):
    """The order of searches within the LLC of the target."""

    CORE_CPU_SMT = 0  # an idle core, then any idle CPU from target on, then the target's siblings
    SMT_CPU = 1  # prev's siblings if no core is idle (c722f35b513f, v5.13), then cores or CPUs from target + 1 on


class AffineBy(IntEnum):
    """Who decides between the waker's CPU and the wakee's previous one."""

    IDLE_AND_WEIGHT = 0  # wake_affine_idle, then wake_affine_weight (v4.14)
    NEVER = 1  # nobody: always prev (nak-affine)


class SharedCache(IntEnum):
    """What wake_affine says at once of two CPUs that share their LLC."""

    ASK = 0  # nothing
    PULL = 1  # the waker's CPU (skip-affine-core-siblings)
    KEEP = 2  # prev (nak-affine-shared)


class LlcFactor(IntEnum):
    """What sd_llc_size, wake_wide's factor, counts."""

    CPUS = 0
    GROUPS = 1  # groups of the LLC domain: cores, where there are SMT domains below it (llc-size-cores)


class PropClock(IntEnum):
    """What SIS_PROP takes as this CPU's idle time."""

    AVG_IDLE = 0  # rq.avg_idle / 512
    WAKE_AVG_IDLE = 1  # rq.wake_avg_idle, aged by jiffies (94aafc3ee31d, v5.14): not captured


class Policy(NamedTuple):
    """Features of a kernel's wakeup placement; ints all, so that compiled code takes the tuple as it is."""

    wake_flags: int = WakeFlags.SD_FLAG_WITHIN
    current_cpu: int = 1  # WF_CURRENT_CPU places at once on the waker's CPU (ab83f455f04d, v6.6)
    llc_factor: int = LlcFactor.CPUS
    affine_by: int = AffineBy.IDLE_AND_WEIGHT
    shared_cache: int = SharedCache.ASK
    wa_idle: int = 1  # sched_feat(WA_IDLE)
    wa_weight: int = 1  # sched_feat(WA_WEIGHT)
    wa_bias: int = 1  # sched_feat(WA_BIAS)
    prev_idle: int = 1  # wake_affine_idle's third rule: an idle prev keeps the task (d8fcb81f1acf, v5.11)
    sync_runnable: int = 1  # its sync rule does not count tasks whose dequeue is delayed (aa3ee4f0b754, v6.16)
    affine_count: int = AffineCount.PULLED
    sched_idle: int = SchedIdle.ANY
    kthread_in_task: int = 1  # the per-CPU kthread rule holds in task context only (8b4e74ccb582, v5.17)
    recent_used: int = RecentUsed.ALWAYS
    scan: int = Scan.SMT_CPU
    sis_prop: int = 0  # sched_feat(SIS_PROP)
    sis_util: int = 1  # sched_feat(SIS_UTIL): scan nr_idle_scan CPUs (70fb5ccf2ebb, v6.0)
    sis_avg_cpu: int = 0  # sched_feat(SIS_AVG_CPU)
    prop_clock: int = PropClock.WAKE_AVG_IDLE
    core_in_mask: int = 1  # an idle sibling of a busy core must lie in the scanned mask (23d04d8c6b8e, v6.9)
    smt_in_llc: int = 1  # select_idle_smt stays within the LLC domain (lost in 3e6efe87cd5c, v6.1; 8aeaffef8c6e, v6.9)
    smt_skips_prev: int = 1  # select_idle_smt does not ask about prev again (3e6efe87cd5c, v6.1)
    cluster: int = 1  # clusters are searched before the LLC (8881e1639f1f, 22165f61d0c4, v6.7)

    def __or__(self, edit: Mapping[str, int]) -> Policy:
        """This policy with some features changed."""
        return self._replace(**edit)
