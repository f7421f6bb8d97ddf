# SPDX-License-Identifier: GPL-2.0-only
"""Releases and traces resolve to features."""

from __future__ import annotations

import pytest
from wakescope.errors import ModelError
from wakescope.model.kernels import CHANGES, kernel, known, policy_for, stable_release
from wakescope.model.policy import AffineCount, Policy, PropClock, RecentUsed, Scan, SchedIdle

TABLE = [
    ("5.10.13", {"scan": Scan.CORE_CPU_SMT, "prev_idle": 0, "kthread_in_task": 0, "sis_prop": 1, "sis_util": 0}),
    ("5.10.262", {"scan": Scan.CORE_CPU_SMT, "kthread_in_task": 1, "recent_used": RecentUsed.ON_HIT}),
    ("5.15.0", {"sis_prop": 1, "sis_util": 0, "prop_clock": PropClock.WAKE_AVG_IDLE, "smt_skips_prev": 0}),
    ("5.15.135", {"sis_prop": 0, "sis_util": 1, "recent_used": RecentUsed.PREV_TESTED, "smt_in_llc": 1}),
    ("6.1.4", {"recent_used": RecentUsed.PREV_TESTED, "affine_count": AffineCount.PICKED, "smt_in_llc": 0}),
    ("6.1.176", {"recent_used": RecentUsed.ALWAYS, "affine_count": AffineCount.PULLED, "core_in_mask": 1}),
    ("6.6.9", {"recent_used": RecentUsed.ALWAYS, "core_in_mask": 0, "cluster": 0, "current_cpu": 1}),
    ("6.12.8", {"cluster": 1, "sync_runnable": 0, "core_in_mask": 1}),
    ("6.12.107", {"sync_runnable": 1, "sched_idle": SchedIdle.ANY}),
    ("6.18.5", {"sync_runnable": 1, "sched_idle": SchedIdle.ANY}),
    ("7.3.4", {"sched_idle": SchedIdle.NOT_SCHED_IDLE}),
]


@pytest.mark.parametrize(("release", "features"), TABLE)
def test_releases_that_were_read(release, features):
    policy = kernel(release)
    assert {name: getattr(policy, name) for name in features} == features


def test_a_series_is_its_newest_release():
    assert kernel("6.1") == kernel("6.1.999")
    assert kernel("6.12") == kernel("6.12.97") != kernel("6.12.96")


@pytest.mark.parametrize("release", ["4.9", "5.11", "5.12.3", "9.0", "next", "6.x", "6.1.0-57-amd64"])
def test_releases_that_are_not_modelled(release):
    assert not known(release)
    with pytest.raises(ModelError):
        kernel(release)


def test_changes_edit_features_that_exist():
    assert all(set(change.edit) <= set(Policy._fields) for change in CHANGES)


def test_a_patch_is_an_edit():
    assert (kernel("6.12") | {"prev_idle": 0}).prev_idle == 0
    assert kernel("6.12").prev_idle == 1


DEBIAN = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-3 (2025-11-26)"


def test_stable_release():
    assert stable_release("6.1.0-57-amd64", DEBIAN) == ("6.1.192", [])
    assert stable_release("6.12.118+deb13-amd64", "#1 SMP") == ("6.12.118", [])
    assert stable_release("6.18.44", "#2 SMP") == ("6.18.44", [])
    ubuntu = "#149~20.04.1-Ubuntu SMP Wed Apr 16 2025 (Ubuntu 5.15.0-139.149~20.04.1-generic 5.15.178)"
    assert stable_release("5.15.0-139-generic", ubuntu) == ("5.15.178", [])
    release, unseen = stable_release("6.8.0-45-generic", "#45-Ubuntu SMP")
    assert release == "6.8"
    assert "newest of 6.8" in unseen[0]


def test_policy_of_a_trace():
    features = ["WA_IDLE", "NO_WA_BIAS", "SIS_UTIL", "NO_SIS_PROP", "PLACE_LAG"]
    found = policy_for({"kernel": "6.1.0-57-amd64", "kernel_version": DEBIAN, "sched_features": features})
    assert found.release == "6.1.192"
    assert found.unseen == []
    assert found.policy == kernel("6.1.192") | {"wa_bias": 0}


def test_features_may_be_a_mapping_or_absent():
    meta = {"kernel": "6.12.100"}
    assert policy_for(meta | {"sched_features": {"SIS_UTIL": False}}).policy.sis_util == 0
    found = policy_for(meta)
    assert found.policy == kernel("6.12.100")
    assert "sched_features" in found.unseen[0]


def test_what_btf_lacks_is_off():
    found = policy_for({"kernel": "6.12.100", "sched_features": [], "btf": {"cfs_rq.h_nr_runnable": False}})
    assert found.policy.sync_runnable == 0
    assert any("h_nr_runnable" in text for text in found.unseen)


def test_a_kernel_that_is_not_stock_says_so():
    found = policy_for({"kernel": "6.18.44", "sched_features": ["WA_IDLE"], "not_stock": ["sched_ext scheduler x"]})
    assert found.unseen == ["not stock: sched_ext scheduler x"]
