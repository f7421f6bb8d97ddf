# SPDX-License-Identifier: GPL-2.0-only
"""recent_used_cpu followed over a trace under the rule of another kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wakescope.model import replay as replaying
from wakescope.model import variants_recent
from wakescope.model.compiled import plain
from wakescope.model.contrast import contrast
from wakescope.model.idle import Path as By
from wakescope.model.kernels import kernel, policy_for
from wakescope.model.replay import Certainty, replay
from wakescope.model.variants import named
from wakescope.model.variants_recent import derive_recent, derive_recents, same_recent
from wakescope.model.wakeup import ANY_CPU
from wakescope.schema import Outcome
from wakescope.tests.maketrace import make_trace, mask, task, topology, wake
from wakescope.trace import Trace

from .decisions import BOX, HZ, random_decisions

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.wake"))
OLD, NEW = kernel("5.10"), kernel("6.12")

# One LLC of 4 CPUs. Nothing is idle unless said, flips are low, and the scan gives up at once.
FACTS: dict[str, Any] = {
    "wake_flags": 8,
    "this_load": 1000,
    "prev_load": 0,
    "waker_h_load": 1,
    "wakee_h_load": 1,
    "this_nr_running": 2,
    "this_h_nr_queued": 2,
    "this_h_nr_runnable": 2,
    "this_nr_idle_scan": 0,
    "prev_nr_idle_scan": 0,
    "this_has_idle_cores": 0,
    "prev_has_idle_cores": 0,
    "has_masks": 1,
    "llc_size": 4,
}


def woken(ts: int, waker: int, wakee: int, cpu: int = 0, prev: int = 1, **more: Any) -> Any:
    more.setdefault("idle_exit", more.get("idle", mask([])))
    return wake(ts, cpu, waker, wakee, prev, prev, **{**FACTS, "recent_used_cpu": 3, **more})


def found(path: Path, rows: list[Any], policy: Any = OLD, own: Any = NEW) -> list[int]:
    tables = {"wakeups": rows, "tasks": [task(pid) for pid in (1, 2, 3)], "switches": []}
    trace = make_trace(path / "t.wake", tables, topology(nodes=1, cores=4))
    return derive_recent(trace, policy, own, HZ).cpus.tolist()


def test_whose_rule_is_another() -> None:
    assert same_recent(NEW, kernel("5.15"))
    assert same_recent(kernel("4.16"), OLD)
    assert same_recent(kernel("4.15"), NEW)  # has none
    assert not same_recent(NEW, OLD)
    assert not same_recent(OLD, NEW)


def test_until_5_14_a_waker_leaves_its_own_cpu(tmp_path: Path) -> None:
    rows = [woken(1, 1, 2, cpu=2), woken(2, 2, 1), woken(3, 2, 1), woken(4, 1, 2)]
    # 1 woke on CPU 2; 2 woke twice on CPU 0
    assert found(tmp_path, rows) == [ANY_CPU, 2, 2, 0]


def test_until_5_14_the_wakees_is_replaced_when_taken(tmp_path: Path) -> None:
    rows = [
        woken(1, 1, 2, cpu=2),
        woken(2, 3, 1, idle=mask([2])),  # CPU 2 is taken
        woken(3, 3, 1, idle=mask([2])),  # and prev, CPU 1, left in its place
    ]
    assert found(tmp_path, rows) == [ANY_CPU, 2, 1]


def test_a_wide_wakeup_leaves_nothing_in_the_wakers(tmp_path: Path) -> None:
    wide = {"waker_flips": 100, "wakee_flips": 10}
    rows = [woken(1, 1, 2, cpu=2), woken(2, 1, 2, cpu=0, **wide), woken(3, 2, 1)]
    assert found(tmp_path, rows)[2] == 2


def test_since_5_15_prev_is_left_whenever_it_is_looked_at(tmp_path: Path) -> None:
    rows = [
        woken(1, 1, 2, prev=1),
        woken(2, 1, 2, prev=2, idle=mask([2])),  # the target is idle: nobody looks
        woken(3, 1, 2, prev=3),
        woken(4, 1, 2, prev=1),
    ]
    assert found(tmp_path, rows, NEW, OLD) == [ANY_CPU, 1, 1, 3]


def test_a_fork_begins_with_the_childs_own(tmp_path: Path) -> None:
    rows = [woken(1, 1, 2, outcome=Outcome.FORK), woken(2, 1, 2)]
    assert found(tmp_path, rows)[1] == 3


def test_what_may_have_happened_is_not_known(tmp_path: Path) -> None:
    unread = {"waker_flips": 0xFFFFFFFF}
    rows = [woken(1, 1, 2, cpu=2), woken(2, 1, 3, cpu=0, **unread), woken(3, 2, 1)]
    assert found(tmp_path / "wide", rows)[2] == ANY_CPU
    rows = [woken(1, 1, 2, cpu=2), woken(2, 1, 3, cpu=2, **unread), woken(3, 2, 1)]
    assert found(tmp_path / "same", rows)[2] == 2  # either way
    rows = [woken(1, 1, 2, cpu=2), woken(2, 1, 3, cpu=0, outcome=Outcome.DELAYED), woken(3, 2, 1)]
    assert found(tmp_path / "delayed", rows)[2] == ANY_CPU  # before 6.12 it was placed
    rows = [woken(1, 1, 2, cpu=2), woken(2, 3, 1, idle=mask([2]), idle_exit=mask([])), woken(3, 2, 1)]
    assert found(tmp_path / "raced", rows)[2] == ANY_CPU


def test_a_loss_window_leaves_nothing_known(tmp_path: Path) -> None:
    rows = [woken(1, 1, 2, cpu=2), woken(2, 2, 1, cpu=1), woken(3, 2, 1, cpu=2), woken(4, 2, 1, cpu=1), woken(5, 1, 2)]
    assert found(tmp_path / "whole", rows) == [ANY_CPU, 2, 2, 2, 1]
    rows[2]["seq"] = 5  # what CPU 2 did between its first and its next wakeup is lost
    assert found(tmp_path / "lossy", rows) == [ANY_CPU, ANY_CPU, ANY_CPU, ANY_CPU, 1]


@pytest.mark.parametrize("name", [path.name for path in CORPUS])
def test_the_kernels_own_is_followed(name: str) -> None:
    """Under the traced kernel's own rule what was left is what the kernel had, wherever it is known."""
    trace = Trace.open(CORPUS[0].parent / name)
    own = policy_for(trace.meta).policy
    rows = trace.array("wakeups")
    rows, cpus = rows[rows["outcome"] == Outcome.PLACED], derive_recent(trace, own, own, trace.meta["hz"]).cpus
    cpus = cpus[trace.array("wakeups", ["outcome"])["outcome"] == Outcome.PLACED]
    known = cpus != ANY_CPU
    assert (cpus[known] == rows["recent_used_cpu"][known]).all()
    assert known.mean() > 0.35


@given(seed=st.integers(0, 2**32 - 1), release=st.sampled_from(["4.16", "5.10", "5.15", "6.12"]))
@settings(max_examples=15, deadline=None)
def test_decided_without_it_means_decided_whatever_it_is(seed: int, release: str) -> None:
    rows, policy = random_decisions(seed, BOX, 60), kernel(release)
    rows["recent_used_cpu"] = ANY_CPU
    results = replay(rows, BOX, policy, HZ)
    decided = results["certainty"] <= Certainty.RACED
    taken = np.zeros(len(rows), bool)
    for cpu in range(-1, BOX.nr_cpus):
        rows["recent_used_cpu"] = cpu
        with_it = replay(rows, BOX, policy, HZ)
        assert (with_it["cpu"] == results["cpu"])[decided].all()
        taken |= with_it["path"] == By.RECENT
    assert not (taken & decided).any()


def test_a_patch_starts_from_what_its_release_leaves(tmp_path: Path) -> None:
    """nak-affine keeps the search at prev; what the wakers left is as without it."""
    trace = Trace.open(CORPUS[0].parent / "6.12-2s2c2t-decision-tbench.wake")
    names = ["5.10", "5.10+nak-affine", "5.10+couple-wakee-flips"]
    made = contrast(trace, [(name, named(name, trace.meta)) for name in names])
    assert all(any("recent_used_cpu" in note for note in judged.notes) for judged in made.policies)
    stock, nak = (judged.decisions for judged in made.policies[:2])
    refused = (stock["affine"] == nak["affine"]) & stock["decided"] & nak["decided"]
    assert refused.any()
    assert (stock["cpu"] == nak["cpu"])[refused].all()


def test_patches_of_a_release_share_what_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.open(CORPUS[0].parent / "6.12-2s2c2t-decision-numa.wake")
    derived = []
    real = variants_recent.derive_recent
    monkeypatch.setattr(variants_recent, "derive_recent", lambda *given: derived.append(given[1]) or real(*given))
    names = ["own", "own+nak-affine", "6.1", "5.10", "5.10+nak-affine", "4.19", "4.19+nak-affine"]
    policies = [(name, named(name, trace.meta)) for name in names]
    found = derive_recents(trace, policies, named("own", trace.meta), trace.meta["hz"], False)
    assert sorted(found) == ["4.19", "4.19+nak-affine", "5.10", "5.10+nak-affine"]
    assert len(derived) == 2
    assert {*derived} == {kernel("5.10"), kernel("4.19")}
    assert found["5.10"] is found["5.10+nak-affine"]


def test_compiled_and_plain_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.open(CORPUS[0].parent / "6.12-2s2c2t-decision-numa.wake")
    own = policy_for(trace.meta).policy
    compiled = [derive_recent(trace, policy, own, trace.meta["hz"]).cpus for policy in (OLD, own)]
    monkeypatch.setattr(replaying, "_replay", plain(replaying._replay))
    monkeypatch.setattr(variants_recent, "replay", replaying.replay)
    with np.errstate(over="ignore"):
        slow = [derive_recent(trace, policy, own, trace.meta["hz"]).cpus for policy in (OLD, own)]
    assert all((a == b).all() for a, b in zip(compiled, slow, strict=True))
