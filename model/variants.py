# SPDX-License-Identifier: GPL-2.0-only
"""The patches of the mail threads as edits of a Policy, and policies by name: RELEASE[+PATCH…]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError
from .kernels import kernel, policy_for
from .policy import IN_WORDS, AffineBy, Backoff, Compare, Flips, Idlest, LlcFactor, Policy, SharedCache, Wide

RELEASES = (
    "4.2",
    "4.3",
    "4.12.0",
    "4.12",
    "4.13",
    "4.14-rc",
    "4.14",
    "4.15",
    "4.16",
    "4.19",
    "5.3",
    "5.4",
    "5.10",
    "5.15",
    "6.1",
    "6.6",
    "6.12",
    "6.18",
    "7.3",
)  # of which patches say where they apply
OWN = "own"  # in place of a release: the kernel the trace was recorded on


@dataclass(frozen=True)
class Patch:
    """A posted change of wakeup placement."""

    name: str
    origin: str  # author, date and subject of the mail
    fate: str  # what became of it
    changes: str  # what it changes, in a sentence
    needs: Mapping[str, tuple[int, ...]]  # feature -> the values on which the patch makes sense
    edit: Mapping[str, int]

    def refusal(self, policy: Policy) -> str | None:
        """Why the patch makes no sense on a policy; None if it does."""
        for feature, values in self.needs.items():
            has = getattr(policy, feature)
            if has not in values:
                return f"{self.name} makes no sense where {IN_WORDS[feature][has]}"
        return None

    def kernels(self) -> list[str]:
        """The modelled releases it applies to."""
        return [release for release in RELEASES if self.refusal(kernel(release)) is None]


THREAD = "Re: [PATCH] sched/fair: Skip wake_affine() for core siblings"
GALBRAITH = f"Mike Galbraith, 26 Sep 2015, {THREAD}"
GORMAN = "Mel Gorman, 12 Feb 2018, [PATCH {}/2] Stop wake_affine fighting with automatic NUMA balancing"
IDLE_THREAD = "[PATCH RESEND] sched: prefer an idle cpu vs an idle sibling for BALANCE_WAKE"

ASKS = {"affine_by": (AffineBy.IDLE_AND_WEIGHT, AffineBy.EFFECTIVE_LOAD, AffineBy.NODES, AffineBy.LLCS)}
SYMMETRIC = {"wide": (Wide.SYMMETRIC,)}
COUPLED = {"flips": (Flips.WAKER,)}
NOT_DELAYED = {"numa_backoff": (Backoff.NEVER,), "affine_by": (AffineBy.IDLE_AND_WEIGHT,)}

_ALL = (
    Patch(
        "skip-affine-core-siblings",
        "Kirill Tkhai, 25 Sep 2015, [PATCH] sched/fair: Skip wake_affine() for core siblings",
        "not merged; 4.12.4 to 4.13 did the same",
        "where the waker's CPU and prev share their cache, the waker's CPU is taken without comparing loads",
        {**ASKS, "shared_cache": (SharedCache.ASK, SharedCache.KEEP)},
        {"shared_cache": SharedCache.PULL},
    ),
    Patch(
        "nak-affine",
        f'{GALBRAITH} ("do the opposite"; the diff was not posted)',
        "a measurement, not a patch",
        "wake_affine always refuses: the search for an idle CPU begins at prev",
        ASKS,
        {"affine_by": AffineBy.NEVER},
    ),
    Patch(
        "nak-affine-shared",
        f'{GALBRAITH} ("do the opposite", read as of shared caches only, like the patch it answers)',
        "a measurement, not a patch; 4.14-rc did the same",
        "where the waker's CPU and prev share their cache, wake_affine refuses without comparing loads",
        {**ASKS, "shared_cache": (SharedCache.ASK, SharedCache.PULL)},
        {"shared_cache": SharedCache.KEEP},
    ),
    Patch(
        "couple-wakee-flips",
        f"{GALBRAITH} (the twiddle of fair.c)",
        "not merged",
        "record_wakee decays and counts the wakee's flips as well as the waker's",
        COUPLED,
        {"flips": Flips.BOTH},
    ),
    Patch(
        "llc-size-cores",
        f"{GALBRAITH} (the twiddle of core.c)",
        "not merged",
        "sd_llc_size, wake_wide's factor, counts the groups of the LLC domain (cores) instead of its CPUs",
        {"llc_factor": (LlcFactor.CPUS,)},
        {"llc_factor": LlcFactor.GROUPS},
    ),
    Patch(
        "twiddle",
        f"{GALBRAITH} (the twiddle)",
        "not merged",
        "couple-wakee-flips and llc-size-cores together",
        {**COUPLED, "llc_factor": (LlcFactor.CPUS,)},
        {"flips": Flips.BOTH, "llc_factor": LlcFactor.GROUPS},
    ),
    Patch(
        "want-affine-rework",
        f"Kirill Tkhai, 28 Sep 2015, {THREAD} (second patch)",
        "not merged",
        "wakeups that are wide, on prev or not allowed here skip the walk of the domains, and none takes the slow "
        "path; changes no CPU unless a domain has SD_BALANCE_WAKE, which none has by default",
        {"affine_rework": (0,), "wide_in_affine": (0,)},
        {"affine_rework": 1},
    ),
    Patch(
        "wake-wide-asymmetric",
        "what 63b0e9edceec (v4.3) replaced",
        "the rule until 4.2",
        "wake_wide says yes only if the waker flips more than factor times as often as the wakee, and the wakee more "
        "than factor",
        SYMMETRIC,
        {"wide": Wide.ASYMMETRIC},
    ),
    Patch(
        "beef-up-wake-wide",
        f"Mike Galbraith, 7 Jul 2015, sched: beef up wake_wide(), in: {IDLE_THREAD}",
        "merged in 4.3 (63b0e9edceec)",
        "wake_wide takes whoever flips more for the waker, and is asked before the walk of the domains",
        {"wide": (Wide.ASYMMETRIC,)},
        {"wide": Wide.SYMMETRIC, "wide_in_affine": 0},
    ),
    Patch(
        "wake-wide-idle",
        f"Mike Galbraith, Jul 2015, in: {IDLE_THREAD} (feature WAKE_WIDE_IDLE of version 2; the diff could not be "
        "found, this is the feature as it was described)",
        "dropped for beef-up-wake-wide",
        "a wide wakeup of the one that flips more, for which no idle CPU is found, takes the slow path",
        {**SYMMETRIC, "wide_idle": (0,)},
        {"wide_idle": 1},
    ),
    Patch(
        "prefer-idle-cpu",
        f"Josef Bacik, 27 May 2015, {IDLE_THREAD} (the diff could not be found, this is what its title and text say)",
        "dropped for beef-up-wake-wide",
        "where a domain has SD_BALANCE_WAKE, an idle CPU is sought first, and a wakeup that finds none takes the slow "
        "path; changes nothing by default, when none has it",
        {"prefer_idle": (0,)},
        {"prefer_idle": 1},
    ),
    Patch(
        "balance-wake",
        "a setting: bit 0x10 of /proc/sys/kernel/sched_domain/*/flags, or relax_domain_level",
        "could be set until 5.6; on later releases a what-if",
        "every domain has SD_BALANCE_WAKE",
        {"balance_wake": (0,)},
        {"balance_wake": 1},
    ),
    Patch(
        "couple-heavy-wakers",
        "Mike Galbraith, 4 Oct 2021, and Mel Gorman, 21 Oct 2021, [PATCH 1/2] sched/fair: Couple wakee flips with "
        "heavy wakers (20211021145603.5313-2-mgorman@techsingularity.net)",
        "not merged",
        "the wakee of one with more than 2 * sd_llc_size times its flips earns one too, and wake_wide does without the "
        "wakee's if the waker has sd_llc_size / 2 times sd_llc_size",
        {**COUPLED, **SYMMETRIC},
        {"flips": Flips.HEAVY, "wide": Wide.HEAVY},
    ),
    Patch(
        "numa-idlest-stay-local",
        GORMAN.format(1),
        "merged in 4.17 (2c83362734da)",
        "a fork or exec leaves the node only if the other node's load is lower by more than the imbalance",
        {"idlest_local": (0,), "idlest": (Idlest.RUNNABLE, Idlest.TYPES)},
        {"idlest_local": 1},
    ),
    Patch(
        "revert-numa-idlest-stay-local",
        "numa-idlest-stay-local taken out again, which 57abff067a08 (v5.5) kept for groups that are fully busy or "
        "overloaded",
        "never posted",
        "a fork or exec leaves the node as it would leave any group: if the other's load is lower by imbalance_pct",
        {"idlest_local": (1,), "idlest": (Idlest.RUNNABLE, Idlest.TYPES)},
        {"idlest_local": 0},
    ),
    Patch(
        "numa-delay-retry",
        f"{GORMAN.format(2)} (as posted)",
        "merged in another form",
        "wake_affine's choice of a CPU without prev's cache puts off the NUMA placement of waker and wakee; "
        "numa_migrate_preferred gives up if its new deadline is later than the old, which it is unless put off",
        NOT_DELAYED,
        {"numa_backoff": Backoff.CACHE, "numa_compare": Compare.INVERTED},
    ),
    Patch(
        "numa-delay-retry-righted",
        "numa-delay-retry with its comparison the other way round",
        "never posted",
        "numa-delay-retry, but numa_migrate_preferred gives up if the deadline it finds is the later one",
        NOT_DELAYED,
        {"numa_backoff": Backoff.CACHE, "numa_compare": Compare.RIGHT},
    ),
    Patch(
        "numa-delay-retry-merged",
        "Mel Gorman, 13 Feb 2018, sched/numa: Delay retrying placement for automatic NUMA balance after wake_affine()",
        "merged for 4.17 (7347fc87dfe6), in no release",
        "numa-delay-retry, but for choices of a CPU on another node than prev's",
        NOT_DELAYED,
        {"numa_backoff": Backoff.NODE, "numa_compare": Compare.INVERTED},
    ),
    Patch(
        "numa-delay-retry-merged-righted",
        "numa-delay-retry-merged with its comparison the other way round",
        "never posted",
        "numa-delay-retry-merged, but numa_migrate_preferred gives up if the deadline it finds is the later one",
        NOT_DELAYED,
        {"numa_backoff": Backoff.NODE, "numa_compare": Compare.RIGHT},
    ),
    Patch(
        "init-numa-migrate-retry",
        "Mel Gorman, 20 May 2022, [PATCH 1/4] sched/numa: Initialise numa_migrate_retry "
        "(20220520103519.1863-2-mgorman@techsingularity.net)",
        "merged in 6.0, 5.19.2 and 5.18.18 (70ce3ea9aa4e)",
        "a new task does not inherit the deadline of its parent's next NUMA placement",
        {"numa_fork_reset": (0,)},
        {"numa_fork_reset": 1},
    ),
)
PATCHES = {patch.name: patch for patch in _ALL}


def patched(policy: Policy, names: list[str]) -> Policy:
    """A policy with patches applied in order. Raises ModelError for a patch that is unknown or makes no sense there."""
    for name in names:
        if not name:
            raise ModelError("a patch is missing after a +: 'wakescope patches' lists them")
        patch = PATCHES.get(name)
        if patch is None:
            raise ModelError(f"there is no patch {name}: 'wakescope patches' lists them")
        refusal = patch.refusal(policy)
        if refusal:
            raise ModelError(f"{refusal}: 'wakescope patches' says where it applies")
        policy |= patch.edit
    return policy


def named(name: str, meta: Mapping[str, Any]) -> Policy:
    """The policy a name such as 6.12, 6.1.192+nak-affine or own+nak-affine stands for.

    meta: of the trace, for "own". Raises ModelError.
    """
    release, *patches = name.split("+")
    policy = policy_for(meta).policy if release == OWN else kernel(release)
    return patched(policy, patches)


def unpatched(name: str, policy: Policy, meta: Mapping[str, Any]) -> Policy:
    """The policy of the release that a policy's name begins with; the policy itself if named() knows no such name."""
    release, *patches = name.split("+")
    return named(release, meta) if patches and all(patch in PATCHES for patch in patches) else policy


def to_json() -> list[dict[str, Any]]:
    """Every patch: name, origin, fate, changes, kernels, needs {feature: [values]}, edit {feature: value}."""
    return [
        {
            "name": patch.name,
            "origin": patch.origin,
            "fate": patch.fate,
            "changes": patch.changes,
            "kernels": patch.kernels(),
            "needs": {feature: [int(v) for v in values] for feature, values in patch.needs.items()},
            "edit": {feature: int(value) for feature, value in patch.edit.items()},
        }
        for patch in PATCHES.values()
    ]
