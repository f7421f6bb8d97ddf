# SPDX-License-Identifier: GPL-2.0-only
"""Releases and traces resolve to features."""

from __future__ import annotations

import pytest
from wakescope.errors import ModelError
from wakescope.model.kernels import CHANGES, kernel, known, policy_for, stable_release
from wakescope.model.policy import AffineCount, NumaSpare, Policy, PropClock, RecentUsed, Scan, SchedIdle, WakeFlags

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


# A release without a change, one with it, the feature in both: where it came, and in each series that took it later.
CHANGED = [
    ("5.10.262", "5.13.0", "wake_flags", WakeFlags.SD_FLAG_APART, WakeFlags.SD_FLAG_WITHIN),
    ("5.10.262", "5.13.0", "prev_idle", 0, 1),
    ("5.10.262", "5.13.0", "scan", Scan.CORE_CPU_SMT, Scan.SMT_CPU),
    ("5.10.262", "5.13.0", "numa_spare", NumaSpare.IDLE, NumaSpare.QUARTER_SPAN),
    ("5.13.19", "5.14.0", "prop_clock", PropClock.AVG_IDLE, PropClock.WAKE_AVG_IDLE),
    ("5.14.21", "5.15.0", "recent_used", RecentUsed.ON_HIT, RecentUsed.PREV_TESTED),
    ("5.15.32", "5.15.33", "numa_spare", NumaSpare.QUARTER_SPAN, NumaSpare.QUARTER_GROUP),
    ("5.16.18", "5.16.19", "numa_spare", NumaSpare.QUARTER_SPAN, NumaSpare.QUARTER_GROUP),
    ("5.17.1", "5.17.2", "numa_spare", NumaSpare.QUARTER_SPAN, NumaSpare.QUARTER_GROUP),
    ("5.17.15", "5.18.0", "numa_spare", NumaSpare.QUARTER_GROUP, NumaSpare.IMB_NUMA_NR),
    ("5.19.17", "6.0.0", "numa_spare", NumaSpare.IMB_NUMA_NR, NumaSpare.ADJUST),
    ("5.10.93", "5.10.94", "kthread_in_task", 0, 1),
    ("5.15.16", "5.15.17", "kthread_in_task", 0, 1),
    ("5.16.2", "5.16.3", "kthread_in_task", 0, 1),
    ("5.14.21", "5.17.0", "kthread_in_task", 0, 1),
    ("5.15.60", "5.15.61", "sis_util", 0, 1),
    ("5.15.60", "5.15.61", "sis_prop", 1, 0),
    ("5.18.17", "5.18.18", "sis_util", 0, 1),
    ("5.18.17", "5.18.18", "sis_prop", 1, 0),
    ("5.19.1", "5.19.2", "sis_util", 0, 1),
    ("5.19.1", "5.19.2", "sis_prop", 1, 0),
    ("5.17.15", "6.0.0", "sis_util", 0, 1),
    ("5.18.17", "5.18.18", "numa_fork_reset", 0, 1),
    ("5.19.1", "5.19.2", "numa_fork_reset", 0, 1),
    ("5.17.15", "6.0.0", "numa_fork_reset", 0, 1),
    ("6.0.19", "6.1.0", "smt_skips_prev", 0, 1),
    ("6.1.0", "6.0.19", "smt_in_llc", 0, 1),  # 6.1 lost it
    ("5.15.110", "5.15.111", "affine_count", AffineCount.PICKED, AffineCount.PULLED),
    ("6.1.27", "6.1.28", "affine_count", AffineCount.PICKED, AffineCount.PULLED),
    ("6.2.14", "6.2.15", "affine_count", AffineCount.PICKED, AffineCount.PULLED),
    ("6.3.1", "6.3.2", "affine_count", AffineCount.PICKED, AffineCount.PULLED),
    ("6.0.19", "6.4.0", "affine_count", AffineCount.PICKED, AffineCount.PULLED),
    ("6.1.41", "6.1.42", "recent_used", RecentUsed.PREV_TESTED, RecentUsed.ALWAYS),
    ("6.4.6", "6.4.7", "recent_used", RecentUsed.PREV_TESTED, RecentUsed.ALWAYS),
    ("6.3.13", "6.5.0", "recent_used", RecentUsed.PREV_TESTED, RecentUsed.ALWAYS),
    ("6.5.13", "6.6.0", "current_cpu", 0, 1),
    ("6.6.99", "6.7.0", "cluster", 0, 1),
    ("6.1.82", "6.1.83", "smt_in_llc", 0, 1),
    ("6.6.22", "6.6.23", "smt_in_llc", 0, 1),
    ("6.7.10", "6.7.11", "smt_in_llc", 0, 1),
    ("6.8.1", "6.8.2", "smt_in_llc", 0, 1),
    ("6.1.82", "6.1.83", "core_in_mask", 0, 1),
    ("6.6.22", "6.6.23", "core_in_mask", 0, 1),
    ("6.7.10", "6.7.11", "core_in_mask", 0, 1),
    ("6.8.1", "6.8.2", "core_in_mask", 0, 1),
    ("6.5.13", "6.9.0", "smt_in_llc", 0, 1),
    ("6.5.13", "6.9.0", "core_in_mask", 0, 1),
    ("6.11.11", "6.12.0", "delay_dequeue", 0, 1),
    ("6.12.36", "6.12.37", "sync_runnable", 0, 1),
    ("6.15.2", "6.15.3", "sync_runnable", 0, 1),
    ("6.14.11", "6.16.0", "sync_runnable", 0, 1),
    ("7.0.9", "7.1.0", "sched_idle", SchedIdle.ANY, SchedIdle.NOT_SCHED_IDLE),
]


@pytest.mark.parametrize(("without", "having", "feature", "before", "after"), CHANGED)
def test_where_a_feature_changes(without, having, feature, before, after):
    assert (getattr(kernel(without), feature), getattr(kernel(having), feature)) == (before, after)


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


STATES = [("DELAY_DEQUEUE", 1), ("WA_IDLE", 1), ("WA_WEIGHT", 1), ("WA_BIAS", 1), ("SIS_PROP", 0), ("SIS_UTIL", 1)]
STATES += [("SIS_AVG_CPU", 0), ("UTIL_EST", 1)]


@pytest.mark.parametrize(("name", "default"), STATES)
def test_every_feature_that_can_be_switched_is_heeded(name, default):
    assert getattr(kernel("6.12.100"), name.lower()) == default
    for on in (0, 1):
        found = policy_for({"kernel": "6.12.100", "sched_features": [name if on else f"NO_{name}"]})
        assert getattr(found.policy, name.lower()) == on


MEMBERS = [("cfs_rq.h_nr_runnable", "sync_runnable"), ("sched_domain_shared.nr_idle_scan", "sis_util")]


@pytest.mark.parametrize(("member", "feature"), MEMBERS)
def test_what_btf_lacks_is_off(member, feature):
    meta = {"kernel": "6.12.100", "sched_features": ["WA_IDLE"]}
    found = policy_for(meta | {"btf": {member: False}})
    assert getattr(found.policy, feature) == 0
    assert [member in text and f"{feature} is off" in text for text in found.unseen] == [True]
    found = policy_for(meta | {"btf": {member: True}})
    assert (getattr(found.policy, feature), found.unseen) == (1, [])


@pytest.mark.parametrize(
    ("more", "note"), [({"tier": "tracepoint"}, "tier tracepoint"), ({"hypervisor": True}, "guest")]
)
def test_what_a_trace_cannot_show_is_said(more, note):
    meta = {"kernel": "6.12.100", "sched_features": ["WA_IDLE"], "tier": "decision", "hypervisor": False}
    assert policy_for(meta).unseen == []
    assert [note in text for text in policy_for(meta | more).unseen] == [True]


def test_a_kernel_that_is_not_stock_says_so():
    found = policy_for({"kernel": "6.18.44", "sched_features": ["WA_IDLE"], "not_stock": ["sched_ext scheduler x"]})
    assert found.unseen == ["not stock: sched_ext scheduler x"]
