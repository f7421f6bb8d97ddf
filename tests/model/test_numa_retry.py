# SPDX-License-Identifier: GPL-2.0-only
"""numa_migrate_retry over time: stock, and the three forms of numa-delay-retry, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from wakescope.model import numa_retry
from wakescope.model.compiled import plain
from wakescope.model.contrast import contrast
from wakescope.model.kernels import kernel
from wakescope.model.numa_retry import NumaHistory
from wakescope.model.replay import replay
from wakescope.model.variants import PATCHES, patched
from wakescope.schema import NumaEvent, TaskEvent
from wakescope.tests.maketrace import make_trace, mask, task, topology, wake

HZ = 250
J = 100_000  # jiffies the traces begin at
DELAY = 15  # min(HZ, msecs_to_jiffies(1000) / 16)
MACHINE = topology(nodes=2, cores=2)  # CPUs 0-1 and 2-3
STOCK = kernel("6.12")


def fault(jiffies: int, retry: int, preferred: int = 1, cpu: int = 0, pid: int = 1, **more: Any) -> dict[str, Any]:
    """A hint fault of a task on a CPU, and the deadline it leaves, jiffies from J on; 0 is none."""
    return {
        "ts": jiffies * 1000, "cpu": cpu, "pid": pid, "event": NumaEvent.FAULT, "jiffies": J + jiffies, "src_cpu": cpu,
        "dst_cpu": cpu, "dst_nid": 0, "preferred_nid": preferred, "migrate_retry": retry and J + retry,
        "scan_period": 1000, **more,
    }  # fmt: skip


def woken(jiffies: int, prev: int = 2, pulled: bool = True, retry: int = 0, **more: Any) -> dict[str, Any]:
    """2 wakes 1 from CPU 0 while both CPUs are busy; pulled says whom the loads favour."""
    loads = (0, 5000) if pulled else (5000, 0)
    row = {
        "wake_flags": 8, "this_load": loads[0], "prev_load": loads[1], "wakee_h_load": 10, "has_masks": 1,
        "this_nr_idle_scan": 2, "prev_nr_idle_scan": 2, "this_has_idle_cores": 0, "prev_has_idle_cores": 0,
        "llc_size": 2, "recent_used_cpu": -1, "wakee_preferred_nid": 1, "wakee_scan_period": 1000,
        "waker_scan_period": 2000, "wakee_migrate_retry": retry and J + retry, "jiffies": J + jiffies, **more,
    }  # fmt: skip
    return wake(jiffies * 1000, 0, 2, 1, prev, 0, **row)


def history(tmp_path: Any, faults: Any, wakes: Any = (), tasks: Any = (), machine: Any = MACHINE) -> Any:
    tables = {
        "numa": faults,
        "wakeups": [woken(0, prev=0), *wakes],
        "tasks": [task(1, b"a"), task(2, b"b"), *tasks],
        "switches": [],
    }
    return make_trace(tmp_path / "t.wake", tables, machine, start_ts=0, stop_ts=10**9)


def run(trace: Any, *patches: str, release: str = "6.12") -> Any:
    policy = patched(kernel(release), list(patches))
    edit = {"wake_flags": STOCK.wake_flags}
    results = replay(trace.array("wakeups"), trace.topology, policy | edit, HZ)
    return NumaHistory(trace, HZ).replay(policy, results)


def counts(trace: Any, *patches: str, release: str = "6.12") -> dict[str, int]:
    """Of task a: how many of each, but those that are none."""
    table = run(trace, *patches, release=release).tasks.set_index("task")
    return {name: int(n) for name, n in table.loc["a:1"].items() if n}


# Stock: at 10 (deadline 0) an attempt, next 25; at 20 too early; at 26 an attempt, next 41; 41 is not after 41; 42 is
FAULTS = [fault(10, 25), fault(20, 25), fault(26, 41), fault(41, 41), fault(42, 57)]


def test_stock_is_the_kernel(tmp_path):
    trace = history(tmp_path, FAULTS)
    assert counts(trace) == {"faults": 5, "due": 3, "attempts": 3, "away": 3}
    found = run(trace)
    assert found.as_kernel == 5
    assert found.last_attempt == 42_000


def test_the_inverted_comparison_stops_placement_for_good(tmp_path):
    """As posted and as merged: the new deadline is later than one that has passed, so there is never an attempt."""
    trace = history(tmp_path, [*FAULTS, *(fault(10_000 * n, 0) for n in range(1, 20))])
    for name in ("numa-delay-retry", "numa-delay-retry-merged"):
        found = run(trace, name)
        assert counts(trace, name) == {"faults": 24, "due": 24, "gave_up": 24}
        assert found.last_attempt is None
        righted = counts(trace, f"{name}-righted")
        assert righted == {"faults": 24, "due": 22, "attempts": 22, "away": 22}


def test_a_pull_from_another_node_puts_both_off(tmp_path):
    """wakee 4 * 1000 ms = 1000 jiffies, waker 4 * 2000 ms = 2000 jiffies after the wakeup."""
    later = [fault(1011, 1026), fault(1012, 1026), fault(1013, 1026, pid=2)]
    trace = history(tmp_path, [*FAULTS, *later], [woken(11)])
    # 26, 41, 42 and 1011 come before 1011 has passed; 1012 does not
    righted = run(trace, "numa-delay-retry-merged-righted")
    assert counts(trace, "numa-delay-retry-merged-righted") == {
        "faults": 7, "due": 2, "attempts": 2, "away": 2, "put_off": 1, "held": 5,
    }  # fmt: skip
    assert righted.tasks.set_index("task").loc["b:2", "put_off"] == 1
    assert righted.tasks.set_index("task").loc["b:2", "held"] == 1
    assert counts(trace)["attempts"] == 4


@pytest.mark.parametrize(
    ("wakes", "put_off"),
    [
        ([woken(11, pulled=False)], 0),  # wake_affine decides for nobody, so prev it is
        ([woken(11, prev=1)], 0),  # the same node
        ([woken(11, wakee_preferred_nid=-1)], 0),  # NUMA balancing has no preference
        ([woken(11, idle=mask([2]))], 0),  # an idle prev is picked, and that is where it was
        ([woken(11), woken(12)], 2),
    ],
)
def test_what_puts_off(tmp_path, wakes, put_off):
    trace = history(tmp_path, FAULTS, wakes)
    assert counts(trace, "numa-delay-retry-merged").get("put_off", 0) == put_off


def test_cache_as_posted_node_as_merged(tmp_path):
    """Two LLCs of one node: the posted patch asks about the cache, the merged one about the node."""
    trace = history(tmp_path, FAULTS, [woken(11)], machine=topology(nodes=1, llcs=2, cores=2))
    for form in ("", "-righted"):
        assert counts(trace, f"numa-delay-retry{form}")["put_off"] == 1
        assert "put_off" not in counts(trace, f"numa-delay-retry-merged{form}")


def test_until_4_18_placement_on_a_new_preferred_node_ignores_the_deadline(tmp_path):
    """4.15 + numa-delay-retry attempts only while a pull's delay is pending: the comparison lets through no other."""
    faults = [fault(10, 25, preferred=0), fault(12, 27, preferred=1), fault(13, 27)]
    assert counts(history(tmp_path / "1", faults), "numa-delay-retry", release="4.15") == {
        "faults": 3, "due": 3, "gave_up": 4,
    }  # fmt: skip
    pulled = history(tmp_path / "2", faults, [woken(11)])
    assert counts(pulled, "numa-delay-retry", release="4.15") == {
        "faults": 3, "due": 1, "attempts": 1, "away": 1, "gave_up": 1, "put_off": 1,
    }  # fmt: skip
    # the attempt at 12 left 27, so at 13 nothing was due; righted, the delay holds even there
    assert counts(pulled, "numa-delay-retry-merged-righted", release="4.15") == {
        "faults": 3, "due": 1, "attempts": 1, "gave_up": 1, "put_off": 1, "held": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("patches", "due"), [([], 1), (["init-numa-migrate-retry"], 2)])
def test_a_child_inherits_the_deadline_or_does_not(tmp_path, patches, due):
    """The parent's deadline is 25: at 20 the child is due only if it does not inherit that."""
    born = {**task(3, b"c", ts=15_000, event=TaskEvent.NEW, start=15_000), "parent_pid": 1}
    trace = history(tmp_path, [fault(10, 25), fault(20, 35, pid=3), fault(36, 51, pid=3)], tasks=[born])
    table = run(trace, *patches, release="5.10").tasks.set_index("task")
    assert table.loc["c:3", "due"] == due


def test_without_a_preferred_node_nothing_is_set(tmp_path):
    trace = history(tmp_path, [fault(10, 0, preferred=-1), fault(11, 0, preferred=-1)])
    assert counts(trace) == {"faults": 2, "due": 2}


def test_an_attempt_on_the_preferred_node_is_not_away(tmp_path):
    trace = history(tmp_path, [fault(10, 25, preferred=0), fault(26, 41, preferred=1)])
    assert counts(trace) == {"faults": 2, "due": 2, "attempts": 2, "away": 1}


def test_compiled_and_plain_agree(tmp_path, monkeypatch):
    trace = history(tmp_path, FAULTS, [woken(11), woken(30)])
    names = [name for name in PATCHES if name.startswith("numa-delay-retry")]
    compiled = [run(trace, name, release=release).tasks for name in names for release in ("4.15", "6.12")]
    monkeypatch.setattr(numa_retry, "replay_retry", plain(numa_retry.replay_retry))
    slow = [run(trace, name, release=release).tasks for name in names for release in ("4.15", "6.12")]
    assert all(a.equals(b) for a, b in zip(compiled, slow, strict=True))


def test_contrast_has_it(tmp_path):
    trace = history(tmp_path, FAULTS, [woken(11)])
    found = contrast(trace, [("stock", STOCK), ("delayed", patched(STOCK, ["numa-delay-retry"]))])
    data = found.to_json()["policies"]
    assert data["stock"]["numa"]["attempts"] == 3
    assert data["delayed"]["numa"]["attempts"] == 0
    assert data["delayed"]["numa"]["last_attempt_ms"] is None
    assert np.isclose(data["stock"]["numa"]["last_attempt_ms"], 0.042)
