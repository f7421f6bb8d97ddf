# SPDX-License-Identifier: GPL-2.0-only
"""Contrast on hand-made traces with known answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wakescope.errors import ModelError, OutputError, TraceError, UsageError
from wakescope.model.contrast import KERNEL, OPEN_LOOP, contrast, proportion
from wakescope.model.validate import wilson
from wakescope.model.variants import named
from wakescope.show_contrast import check_parquet, write_parquet
from wakescope.tests.maketrace import make_trace, mask, switch, task, topology, wake
from wakescope.trace import Trace

# Two nodes of two cores, one LLC each: CPUs 0-1 and 2-3. What wake_affine needs is known and sync is not set.
KNOWN = {
    "wake_flags": 8,
    "this_nr_running": 1,
    "this_h_nr_queued": 1,
    "this_h_nr_runnable": 1,
    "this_nr_idle_scan": 2,
    "prev_nr_idle_scan": 2,
    "this_has_idle_cores": 0,
    "prev_has_idle_cores": 0,
    "has_masks": 1,
    "llc_size": 2,
    "recent_used_cpu": -1,
}
PULLED = {"this_load": 0, "prev_load": 1000, "wakee_h_load": 10}  # the loads favour the waker's CPU


def traced(path: Path, **meta: object) -> Trace:
    rows = [
        # prev on the other node, all busy: stock pulls to CPU 0 by weight
        wake(10, 0, 1, 2, prev=2, chosen=0, **KNOWN, **PULLED),
        # the same with CPU 1 idle: stock pulls to the node and takes CPU 1
        wake(20, 0, 1, 2, prev=2, chosen=1, idle=mask([1]), **KNOWN, **PULLED),
        # prev shares the cache and everything is idle but the waker's CPU: prev in any case
        wake(30, 0, 1, 3, prev=1, chosen=1, idle=mask([1]), **KNOWN, **PULLED),
    ]
    tables = {"wakeups": rows, "tasks": [task(1, b"waker"), task(2, b"far"), task(3, b"near")], "switches": []}
    return make_trace(path / "t.wake", tables, topology(nodes=2, cores=2), **meta)


def policies(trace: Trace, *names: str) -> list[tuple[str, object]]:
    return [(name, named(name, trace.meta)) for name in names]


def test_moves_and_marks(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    found = contrast(trace, policies(trace, "own", "own+nak-affine"))
    stock, nak = found.policies
    assert stock.decisions["cpu"].tolist() == [0, 1, 1]
    assert nak.decisions["cpu"].tolist() == [2, 2, 1]
    assert nak.decisions["stacked"].tolist() == [False, True, False]  # CPU 1 is idle, on the other node
    assert nak.decisions["stacked_llc"].tolist() == [False, False, False]
    assert found.kernel.decisions["cross_node"].tolist() == [True, True, False]
    (comparison,) = found.comparisons
    data = comparison.to_json()
    assert data["moved"]["count"] == 2
    assert data["decided"] == 3
    assert data["distances"] == {"cross": 2}
    gone = data["changes"]["cross_node"]
    assert (gone["base"], gone["other"]) == (2, 0)
    assert gone["gained"] == proportion(0, 0, 3)
    assert gone["lost"] == proportion(2, 0, 3)
    assert data["changes"]["on_waker"]["lost"]["count"] == 1
    nodes = [row for row in data["from_to"] if row["level"] == "node"]
    assert nodes == [{"level": "node", "from_id": 0, "to_id": 1, "decisions": 2}]
    far, near = data["by_task"]
    assert (far["wakee"], far["decisions"], far["undecidable"], far["moved"]) == ("far:2", 2, 0, 2)
    assert (far["low"], far["high"]) == wilson(2, 2)
    assert (near["wakee"], near["moved"]) == ("near:3", 0)
    assert (near["low"], near["high"]) == wilson(0, 1)


def test_stacked_needs_an_allowed_idle_cpu(tmp_path: Path) -> None:
    rows = [
        wake(10, 0, 1, 2, prev=0, chosen=0, idle=mask([1]), **KNOWN),
        wake(20, 0, 1, 2, prev=0, chosen=0, **KNOWN),  # CPU 3, which only its switches tell of
        wake(30, 0, 1, 2, prev=0, chosen=0, idle=mask([1]), allowed=mask([0, 2]), **KNOWN),
        wake(40, 0, 1, 2, prev=0, chosen=0, idle=mask([1]), sched_idle=mask([0]), **KNOWN),
    ]
    switches = [switch(5, 3, 0, 9), switch(15, 3, 9, 0)]
    tables = {"wakeups": rows, "tasks": [task(1), task(2)], "switches": switches}
    trace = make_trace(tmp_path / "t.wake", tables, topology(nodes=2, cores=2))
    found = contrast(trace, policies(trace, "own"))
    assert found.kernel.decisions["stacked"].tolist() == [True, True, False, False]
    assert found.kernel.decisions["stacked_llc"].tolist() == [True, False, False, False]
    assert found.kernel.decisions["on_waker"].tolist() == [True, True, True, True]


def test_undecidable_is_counted_and_not_moved(tmp_path: Path) -> None:
    unknown = {**KNOWN, "wake_flags": 0xFFFFFFFF}  # sync or not decides, prev and waker's CPU being busy
    rows = [wake(10, 0, 1, 2, prev=2, chosen=0, **unknown)]
    tables = {"wakeups": rows, "tasks": [task(1), task(2)], "switches": []}
    trace = make_trace(tmp_path / "t.wake", tables, topology(nodes=2, cores=2))
    (comparison,) = contrast(trace, policies(trace, "own", "own+nak-affine")).comparisons
    data = comparison.to_json()
    assert (data["decided"], data["undecidable"], data["moved"]["count"]) == (0, 1, 0)
    assert data["moved"]["share"] is None
    (row,) = data["by_task"]
    assert (row["decisions"], row["undecidable"], row["moved"]) == (1, 1, 0)
    assert (row["low"], row["high"]) == (wilson(0, 1)[0], wilson(1, 1)[1])
    assert data["changes"]["stacked"]["gained"] == proportion(0, 1, 1)


def test_wake_flags_are_read_as_the_recorded_kernel_numbers_them(tmp_path: Path) -> None:
    sync = {**KNOWN, "wake_flags": 0x18}  # WF_TTWU | WF_SYNC of 6.12; in 5.10 WF_SYNC is 1
    rows = [wake(10, 0, 1, 2, prev=2, chosen=0, **sync, this_load=1000, prev_load=0, waker_h_load=5)]
    tables = {"wakeups": rows, "tasks": [task(1), task(2)], "switches": []}
    trace = make_trace(tmp_path / "t.wake", tables, topology(nodes=2, cores=2))
    found = contrast(trace, policies(trace, "own", "5.10"))
    assert [judged.decisions["cpu"].tolist() for judged in found.policies] == [[0], [0]]


def test_written_out(tmp_path: Path) -> None:
    import pandas as pd

    trace = traced(tmp_path)
    found = contrast(trace, policies(trace, "own", "own+nak-affine"))
    data = found.to_json()
    json.dumps(data, allow_nan=False)
    assert data["statement"] == OPEN_LOOP
    write_parquet(tmp_path / "c.parquet", found)
    frame = pd.read_parquet(tmp_path / "c.parquet")
    assert len(frame) == 3 * 3
    assert frame["policy"].unique().tolist() == [KERNEL, "own", "own+nak-affine"]


def test_errors(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    with pytest.raises(ModelError, match="no patch"):
        named("own+bogus", trace.meta)
    with pytest.raises(ModelError, match=r"missing after a \+"):
        named("own+", trace.meta)
    with pytest.raises(OutputError, match="exists"):
        check_parquet(tmp_path)
    with pytest.raises(OutputError, match="not a folder"):
        check_parquet(tmp_path / "nowhere" / "c.parquet")
    with pytest.raises(UsageError, match="twice"):
        contrast(trace, policies(trace, "own", "own"))
    with pytest.raises(ModelError, match="nak-affine-shared needs"):
        named("own+nak-affine+nak-affine-shared", trace.meta)
    with pytest.raises(ModelError):
        named("3.0", trace.meta)
    with pytest.raises(TraceError, match="HZ"):
        contrast(traced(tmp_path / "no-hz", hz=0), policies(trace, "own"))
