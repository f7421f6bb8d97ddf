# SPDX-License-Identifier: GPL-2.0-only
"""Which kernel release has which features of wakeup placement, and which policy a trace was recorded under."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError
from .old import OLD, old_kernel
from .policy import AffineCount, NumaSpare, Policy, PropClock, RecentUsed, Scan, SchedIdle, WakeFlags

Version = tuple[int, int]

# Releases whose placement was read in source, from first to last. 5.11 and 5.12 lie between two designs of the scan
# and are not modelled.
FIRST: Version = (5, 10)
LAST: Version = (7, 3)
BETWEEN: tuple[Version, ...] = ((5, 11), (5, 12))

# v5.10 kernel/sched/fair.c
BASE = Policy(
    wake_flags=WakeFlags.SD_FLAG_APART,
    current_cpu=0,
    prev_idle=0,
    sync_runnable=0,
    delay_dequeue=0,
    affine_count=AffineCount.PICKED,
    sched_idle=SchedIdle.ANY,
    kthread_in_task=0,
    recent_used=RecentUsed.ON_HIT,
    scan=Scan.CORE_CPU_SMT,
    sis_prop=1,
    sis_util=0,
    prop_clock=PropClock.AVG_IDLE,
    core_in_mask=0,
    smt_in_llc=1,
    smt_skips_prev=0,
    cluster=0,
    numa_fork_reset=0,
    numa_spare=NumaSpare.IDLE,
    this_sd=1,
    group_allowed=0,
)


@dataclass(frozen=True)
class Change:
    """A commit that changed a feature: the release it came with, and the stable releases it was taken into."""

    commit: str
    since: Version
    edit: dict[str, int]
    stable: dict[Version, int] = field(default_factory=dict)  # series -> first point release


CHANGES = (
    Change("3aef1551e942", (5, 11), {"wake_flags": WakeFlags.SD_FLAG_WITHIN}),
    Change("d8fcb81f1acf", (5, 11), {"prev_idle": 1}),
    Change("23e6082a522e", (5, 11), {"numa_spare": NumaSpare.QUARTER_SPAN}),
    Change("9fe1f127b913", (5, 12), {"scan": Scan.SMT_CPU}),
    Change("94aafc3ee31d", (5, 14), {"prop_clock": PropClock.WAKE_AVG_IDLE}),
    Change("89aafd67f28c", (5, 15), {"recent_used": RecentUsed.PREV_TESTED}),
    Change(
        "2cfb7a1b031b",
        (5, 18),
        {"numa_spare": NumaSpare.QUARTER_GROUP},
        {(5, 15): 33, (5, 16): 19, (5, 17): 2},
    ),
    Change("e496132ebedd", (5, 18), {"numa_spare": NumaSpare.IMB_NUMA_NR}),
    Change("8b4e74ccb582", (5, 17), {"kthread_in_task": 1}, {(5, 10): 94, (5, 15): 17, (5, 16): 3}),
    Change("cb29a5c19d2d", (6, 0), {"numa_spare": NumaSpare.ADJUST}),
    Change("70fb5ccf2ebb", (6, 0), {"sis_util": 1, "sis_prop": 0}, {(5, 15): 61, (5, 18): 18, (5, 19): 2}),
    Change("70ce3ea9aa4e", (6, 0), {"numa_fork_reset": 1}, {(5, 18): 18, (5, 19): 2}),
    Change("b9bae70440d2", (6, 1), {"smt_skips_prev": 1}),
    Change("3e6efe87cd5c", (6, 1), {"smt_in_llc": 0}),
    Change("96c1c0cfe493", (6, 1), {"this_sd": 0}),
    Change(
        "39afe5d6fc59",
        (6, 4),
        {"affine_count": AffineCount.PULLED},
        {(5, 15): 111, (6, 1): 28, (6, 2): 15, (6, 3): 2},
    ),
    Change("ae2ad293d6be", (6, 5), {"recent_used": RecentUsed.ALWAYS}, {(6, 1): 42, (6, 4): 7}),
    Change("ab83f455f04d", (6, 6), {"current_cpu": 1}),
    Change("8881e1639f1f", (6, 7), {"cluster": 1}),
    Change("8aeaffef8c6e", (6, 9), {"smt_in_llc": 1}, {(6, 1): 83, (6, 6): 23, (6, 7): 11, (6, 8): 2}),
    Change("23d04d8c6b8e", (6, 9), {"core_in_mask": 1}, {(6, 1): 83, (6, 6): 23, (6, 7): 11, (6, 8): 2}),
    Change("152e11f6df29", (6, 12), {"delay_dequeue": 1}),
    Change("aa3ee4f0b754", (6, 16), {"sync_runnable": 1}, {(6, 12): 37, (6, 15): 3}),
    Change(
        "82d6e01a0699",
        (6, 19),
        {"group_allowed": 1},
        {(5, 10): 261, (5, 15): 212, (6, 1): 178, (6, 6): 144, (6, 12): 97, (6, 18): 39},
    ),
    Change("fd54d81c2c0e", (7, 1), {"sched_idle": SchedIdle.NOT_SCHED_IDLE}),
)

# sched_features that are fields of Policy under the same name in small letters.
FEATURES = ("DELAY_DEQUEUE", "WA_IDLE", "WA_WEIGHT", "WA_BIAS", "SIS_PROP", "SIS_UTIL", "SIS_AVG_CPU", "UTIL_EST")

# Members without which a kernel cannot have a feature: seen in BTF they overrule the release.
NEEDS = {
    "sync_runnable": "cfs_rq.h_nr_runnable",
    "sis_util": "sched_domain_shared.nr_idle_scan",
}


@dataclass(frozen=True)
class Kernel:
    """The policy a trace was recorded under, the stable release it was taken from, and what could not be seen."""

    policy: Policy
    release: str
    unseen: list[str]


def kernel(release: str) -> Policy:
    """The default policy of a stable release such as "6.1.192", or of a series such as "6.12" at its newest.

    Raises ModelError for a release that is not modelled.
    """
    old = old_kernel(release)
    if old is not None:
        return old
    series, point = _numbers(release)
    if not known(release):
        raise ModelError(
            f"kernel {release} is not modelled; known are {', '.join(OLD)}, {_dotted(FIRST)} and 5.13 to "
            f"{_dotted(LAST)}"
        )
    policy = BASE
    for change in CHANGES:
        taken = change.stable.get(series)
        if series >= change.since or (taken is not None and (point is None or point >= taken)):
            policy |= change.edit
    return policy


def known(release: str) -> bool:
    """Whether the model has features for a release."""
    try:
        if old_kernel(release) is not None:
            return True
        series, _ = _numbers(release)
    except ModelError:
        return False
    return FIRST <= series <= LAST and series not in BETWEEN


def policy_for(meta: Mapping[str, Any]) -> Kernel:
    """The policy of the kernel a trace was recorded on, from the trace's meta.json.

    Reads kernel (uname -r), kernel_version (uname -v and what Ubuntu adds), sched_features (names, NO_ before those
    off; or name: bool; None where debugfs was not readable), btf ({"struct.member": bool}), tier, hypervisor and
    not_stock (reasons).
    Raises ModelError if the release is not modelled.
    """
    try:
        release, unseen = stable_release(str(meta.get("kernel", "")), str(meta.get("kernel_version", "")))
        policy = kernel(release)
    except ModelError as error:  # other commands read its records by its own rules
        raise ModelError(
            f"{error}: only 'wakescope validate --policy RELEASE' can replay its traces, as if they were that kernel's"
        ) from None
    states = feature_states(meta.get("sched_features"))
    if not states:
        unseen.append("sched_features could not be read: taken as the release has them by default")
    policy |= {name.lower(): int(states[name]) for name in FEATURES if name in states}
    for feature, member in NEEDS.items():
        if getattr(policy, feature) and meta.get("btf", {}).get(member) is False:
            policy |= {feature: 0}
            unseen.append(f"{member} is not in this kernel, so {feature} is off, though {release} should have it")
    return Kernel(policy, release, [*unseen, *unseen_by_any(meta)])


def unseen_by_any(meta: Mapping[str, Any]) -> list[str]:
    """What a trace cannot show, whatever the policy it is replayed under. Reads tier, hypervisor and not_stock."""
    unseen = []
    if meta.get("tier") == "tracepoint":
        unseen.append("tier tracepoint does not see wake_flags, context and CPUs with SCHED_IDLE tasks only")
    if meta.get("hypervisor"):
        unseen.append("in a guest available_idle_cpu() may also ask whether the host preempted the CPU: not captured")
    return unseen + [f"not stock: {reason}" for reason in meta.get("not_stock", [])]


def stable_release(release: str, version: str = "") -> tuple[str, list[str]]:
    """The stable release behind uname -r and uname -v, and what had to be guessed.

    Debian's uname -r names the ABI (6.1.0-57-amd64) and its uname -v the release (Debian 6.1.192-3). Ubuntu's names
    the ABI too, and version has its /proc/version_signature (Ubuntu 5.15.0-139.149-generic 5.15.178). Others that
    have .0 in uname -r hide the point release.
    """
    named = re.search(r"(?:Debian|Ubuntu \S+) (\d+\.\d+\.\d+)", version)
    if named:
        return named[1], []
    found = re.match(r"\d+\.\d+(\.\d+)?", release)
    if not found:
        raise ModelError(f"{release!r} is not a kernel release")
    if release.startswith(found[0] + "-") and found[1] in (None, ".0"):
        series = ".".join(found[0].split(".")[:2])
        return series, [f"the point release behind {release} is unknown: taken as the newest of {series}, as released"]
    return found[0], []


def feature_states(features: Mapping[str, bool] | Iterable[str] | None) -> dict[str, bool]:
    """Scheduler features by name, from a mapping or from the names debugfs lists; {} for None."""
    if features is None:
        return {}
    if isinstance(features, Mapping):
        return {name: bool(on) for name, on in features.items()}
    return {name.removeprefix("NO_"): not name.startswith("NO_") for name in features}


def _numbers(release: str) -> tuple[Version, int | None]:
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?", release, re.ASCII)
    if not found:
        raise ModelError(f"{release!r} is not a kernel release such as 6.1.192 or 6.12")
    return (int(found[1]), int(found[2])), None if found[3] is None else int(found[3])


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"
