# SPDX-License-Identifier: GPL-2.0-only
"""The patches of the mail threads as edits of a Policy, and policies by name: RELEASE[+PATCH…]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .kernels import kernel, policy_for
from .policy import AffineBy, LlcFactor, Policy, SharedCache

OWN = "own"  # in place of a release: the kernel the trace was recorded on


@dataclass(frozen=True)
class Patch:
    """A posted change of wakeup placement."""

    name: str
    origin: str  # author, date and subject of the mail
    fate: str  # what became of it
    changes: str  # what it changes, in a sentence
    needs: dict[str, tuple[int, ...]]  # feature -> the values on which the patch makes sense
    edit: dict[str, int]

    def refusal(self, policy: Policy) -> str | None:
        """Why the patch makes no sense on a policy; None if it does."""
        for feature, values in self.needs.items():
            if getattr(policy, feature) not in values:
                return f"{self.name} needs {feature} to be {' or '.join(map(str, values))}"
        return None


SKIP_AFFINE = "Kirill Tkhai, 25 Sep 2015, [PATCH] sched/fair: Skip wake_affine() for core siblings"
REPLY = "Mike Galbraith, 26 Sep 2015, Re: [PATCH] sched/fair: Skip wake_affine() for core siblings"

PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "skip-affine-core-siblings",
            SKIP_AFFINE,
            "not merged; 4.12.4 to 4.13 did the same",
            "waker's CPU and prev share their cache: the waker's CPU, without comparing loads",
            {"affine_by": (AffineBy.IDLE_AND_WEIGHT,), "shared_cache": (SharedCache.ASK,)},
            {"shared_cache": SharedCache.PULL},
        ),
        Patch(
            "nak-affine",
            REPLY,
            "not posted as a patch",
            "wake_affine always refuses: the search begins at prev",
            {"affine_by": (AffineBy.IDLE_AND_WEIGHT,)},
            {"affine_by": AffineBy.NEVER},
        ),
        Patch(
            "nak-affine-shared",
            REPLY + " (read as the opposite of the patch, which touches shared caches only)",
            "not posted as a patch; 4.14-rc did the same",
            "waker's CPU and prev share their cache: prev, without comparing loads",
            {"affine_by": (AffineBy.IDLE_AND_WEIGHT,), "shared_cache": (SharedCache.ASK,)},
            {"shared_cache": SharedCache.KEEP},
        ),
        Patch(
            "llc-size-cores",
            REPLY + " (second part of the twiddle)",
            "not merged",
            "sd_llc_size, wake_wide's factor, counts the groups of the LLC domain (cores) instead of its CPUs",
            {"llc_factor": (LlcFactor.CPUS,)},
            {"llc_factor": LlcFactor.GROUPS},
        ),
    )
}


def patched(policy: Policy, names: list[str]) -> Policy:
    """A policy with patches applied in order. Raises UsageError for a patch that is unknown or makes no sense there."""
    for name in names:
        patch = PATCHES.get(name)
        if patch is None:
            raise UsageError(f"there is no patch {name}: 'wakescope patches' lists them")
        refusal = patch.refusal(policy)
        if refusal:
            raise UsageError(f"{refusal}: 'wakescope patches' says where it applies")
        policy |= patch.edit
    return policy


def named(name: str, meta: Mapping[str, Any]) -> Policy:
    """The policy a name such as 6.12, 6.1.192+nak-affine or own+nak-affine stands for.

    meta: of the trace, for "own". Raises UsageError (patch) or KernelError (release).
    """
    release, *patches = name.split("+")
    policy = policy_for(meta).policy if release == OWN else kernel(release)
    return patched(policy, patches)


def to_json() -> list[dict[str, Any]]:
    """Every patch: name, origin, fate, changes, needs {feature: [values]}, edit {feature: value}."""
    return [
        {
            "name": patch.name,
            "origin": patch.origin,
            "fate": patch.fate,
            "changes": patch.changes,
            "needs": {feature: [int(v) for v in values] for feature, values in patch.needs.items()},
            "edit": {feature: int(value) for feature, value in patch.edit.items()},
        }
        for patch in PATCHES.values()
    ]
