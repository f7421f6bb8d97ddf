# SPDX-License-Identifier: GPL-2.0-only
"""Contrast on hand-made traces with known answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from wakescope import trace as traces
from wakescope.errors import ModelError, OutputError, TraceError, UsageError
from wakescope.model.contrast import KERNEL, OPEN_LOOP, contrast, proportion
from wakescope.model.validate import validate, wilson
from wakescope.model.variants import named
from wakescope.schema import NEVER, Outcome
from wakescope.show_contrast import check_parquet, write_parquet
from wakescope.tests.maketrace import Row, make_trace, mask, switch, task, topology, wake
from wakescope.topology import Topology
from wakescope.trace import Trace

from .decisions import busy, cpu_loads

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
BOX = topology(nodes=2, cores=2)


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
    return make_trace(path / "t.wake", tables, BOX, **meta)


def of_rows(path: Path, rows: list[Row], machine: Topology = BOX, **tables: list[Row]) -> Trace:
    """A trace of these wakeups, of waker 1 and wakee 2, and further tables."""
    return make_trace(
        path / "t.wake", {"wakeups": rows, "tasks": [task(1), task(2)], "switches": [], **tables}, machine
    )


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
    trace = of_rows(tmp_path, rows, switches=[switch(5, 3, 0, 9), switch(15, 3, 9, 0)])
    found = contrast(trace, policies(trace, "own"))
    assert found.kernel.decisions["stacked"].tolist() == [True, True, False, False]
    assert found.kernel.decisions["stacked_llc"].tolist() == [True, False, False, False]
    assert found.kernel.decisions["on_waker"].tolist() == [True, True, True, True]


def test_moves_are_counted_at_every_level_they_leave(tmp_path: Path) -> None:
    machine = topology(nodes=2, cores=2, threads=2)
    favoured = {**KNOWN, **PULLED, "llc_size": 4}
    rows = [wake(10 * prev, 0, 1, 2, prev=prev, chosen=0, **favoured) for prev in (1, 2, 4)]  # thread, core, node
    trace = of_rows(tmp_path, rows, machine)
    (comparison,) = contrast(trace, policies(trace, "own", "own+nak-affine")).comparisons
    assert comparison.base.decisions["cpu"].tolist() == [0, 0, 0]
    assert comparison.other.decisions["cpu"].tolist() == [1, 2, 4]
    moves = [tuple(row.values()) for row in comparison.to_json()["from_to"]]
    assert moves == [("core", 0, 2, 1), ("core", 0, 4, 1), ("llc", 0, 4, 1), ("node", 0, 1, 1)]


def test_a_cpu_of_unknown_state_is_not_stacked_on(tmp_path: Path) -> None:
    rows = [wake(10, 0, 1, 2, prev=2, chosen=chosen, idle=mask([1]), **KNOWN) for chosen in (4, 5)]
    trace = of_rows(tmp_path, rows, topology(nodes=3, cores=2), switches=[switch(5, 5, 0, 9)])
    found = contrast(trace, policies(trace, "own"))
    assert found.kernel.decisions["stacked"].tolist() == [False, True]  # of CPU 4 no switch tells


def test_forks_are_judged_by_what_they_found_on_each_cpu(tmp_path: Path) -> None:
    fork = wake(10, 0, 1, 2, prev=0, chosen=0, outcome=Outcome.FORK, idle=mask([1]), **KNOWN)
    loads = cpu_loads(BOX, {cpu: busy() for cpu in (0, 1, 2)})  # CPU 3 idles, which the wakeup's own words do not say
    trace = of_rows(tmp_path, [fork], loads=loads)
    (kernel,) = contrast(trace, policies(trace, "own")).kernel.decisions.to_dict("records")
    assert (kernel["stacked"], kernel["stacked_llc"]) == (True, False)


def test_the_idle_task_has_no_cpu_to_share(tmp_path: Path) -> None:
    trace = of_rows(tmp_path, [wake(10, 0, waker, 2, prev=0, chosen=0, **KNOWN) for waker in (1, 0)])
    assert contrast(trace, policies(trace, "own")).kernel.decisions["on_waker"].tolist() == [True, False]


def test_what_is_not_replayed_is_counted_by_reason(tmp_path: Path) -> None:
    outcomes = [Outcome.PLACED, Outcome.QUEUED, *[Outcome.DELAYED] * 2, *[Outcome.WAKELIST] * 3]
    rows = [wake(10 + n, 0, 1, 2, prev=0, chosen=0, outcome=outcome) for n, outcome in enumerate(outcomes)]
    ends = [(Outcome.FORK, 0), (Outcome.FORK, 1), (Outcome.FORK, 2), (Outcome.EXEC, 3), (Outcome.EXEC, 0)]
    rows += [wake(20 + n, 0, 1, 2, prev=0, chosen=to, outcome=outcome) for n, (outcome, to) in enumerate(ends)]
    rows.append(wake(30, 0, 1, 2, prev=0, chosen=2))  # to another node, but replayed
    trace = of_rows(tmp_path, rows)
    found = contrast(trace, policies(trace, "own"))
    assert len(found.decisions) == 2
    assert found.not_replayed == {"forks": 3, "execs": 2, "to_another_node": 2, "delayed": 2, "wakelist": 3}


def test_pieces_of_a_trace_are_judged_as_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        wake(
            10 * n, 0, 1, 2, prev=2, chosen=0, idle=mask([n % 4]), waker_flips=n, waker_last_wakee=9, **KNOWN, **PULLED
        )
        for n in range(1, 8)
    ]
    trace = of_rows(tmp_path, rows, switches=[switch(10 * n - 5, n % 4, 0, 9) for n in range(1, 8)])
    named_ones = policies(trace, "own", "own+nak-affine", "own+couple-wakee-flips")  # the last derives flips
    whole = contrast(trace, named_ones)
    monkeypatch.setattr(traces, "CHUNK", 3)
    pieces = contrast(trace, named_ones)
    assert len(list(trace.chunks("wakeups"))) == 3
    pd.testing.assert_frame_equal(pieces.df(), whole.df())
    assert pieces.decisions["row"].tolist() == list(range(7))
    assert whole.kernel.decisions["stacked"].nunique() == 2


def test_undecidable_is_counted_and_not_moved(tmp_path: Path) -> None:
    unknown = {**KNOWN, "wake_flags": 0xFFFFFFFF}  # sync or not decides, prev and waker's CPU being busy
    rows = [wake(10, 0, 1, 2, prev=2, chosen=0, **unknown)]
    trace = of_rows(tmp_path, rows)
    (comparison,) = contrast(trace, policies(trace, "own", "own+nak-affine")).comparisons
    data = comparison.to_json()
    assert (data["decided"], data["undecidable"], data["moved"]["count"]) == (0, 1, 0)
    assert data["moved"]["share"] is None
    (row,) = data["by_task"]
    assert (row["decisions"], row["undecidable"], row["moved"]) == (1, 1, 0)
    assert (row["low"], row["high"]) == (wilson(0, 1)[0], wilson(1, 1)[1])
    assert data["changes"]["stacked"]["gained"] == proportion(0, 1, 1)


# Wide by the symmetric rule only: the wakee has no more flips than the factor, 2.
WIDE = {"waker_flips": 16, "wakee_flips": 2, "waker_last_wakee": 2, "waker_decay_ts": 1_000_000}


def test_wide_may_be_unknown_though_the_cpu_is_decided_and_known_though_it_is_not(tmp_path: Path) -> None:
    rows = [
        wake(10, 0, 1, 2, prev=0, chosen=0, **KNOWN, **WIDE),
        wake(20, 0, 1, 2, prev=0, chosen=0, **KNOWN, **{**WIDE, "waker_flips": NEVER}),  # flips unread, prev is here
        wake(30, 0, 1, 2, prev=2, chosen=0, **{**KNOWN, "wake_flags": NEVER}),  # sync or not, but not wide
        wake(40, 0, 1, 2, prev=2, chosen=0, **{**KNOWN, "has_masks": 0}, **WIDE),  # wide, which CPUs idle is unknown
        wake(50, 0, 1, 2, prev=2, chosen=0, **{**KNOWN, "wake_flags": NEVER}, **{**WIDE, "waker_flips": NEVER}),
    ]
    trace = of_rows(tmp_path, rows)
    found = contrast(trace, policies(trace, "own", "own+wake-wide-asymmetric"))
    own, old = found.policies
    assert own.decisions["decided"].tolist() == [True, True, False, False, False]
    assert own.decisions["wide_known"].tolist() == [True, False, True, True, False]
    assert own.decisions["wide"].tolist() == [True, False, False, True, False]
    assert not old.decisions["wide"].any()
    assert own.shares()["wide"] == proportion(2, 2, 5)
    assert own.shares()["on_waker"] == proportion(2, 3, 5)
    data = found.comparisons[0].to_json()
    wide = {"base": 2, "other": 0, "gained": proportion(0, 2, 5), "lost": proportion(2, 2, 5)}
    assert data["changes"]["wide"] == wide
    assert data["changes"]["on_waker"]["lost"] == proportion(0, 3, 5)
    (row,) = data["by_task"]
    assert (row["decisions"], row["undecidable"], row["wide_unknown"]) == (5, 3, 2)
    assert (row["wide_base"], row["wide_other"], row["on_waker_base"]) == (2, 0, 2)


def test_wide_is_unknown_where_it_is_under_either_policy(tmp_path: Path) -> None:
    ungrouped = replace(BOX, domains=[replace(sd, groups=0) for sd in BOX.domains])  # which llc-size-cores counts
    trace = of_rows(tmp_path, [wake(10, 0, 1, 2, prev=0, chosen=0, **KNOWN, **WIDE)], ungrouped)
    found = contrast(trace, policies(trace, "own", "own+llc-size-cores"))
    (comparison,) = found.comparisons
    assert comparison.both.tolist() == [True]
    nothing = {"base": 0, "other": 0, "gained": proportion(0, 1, 1), "lost": proportion(0, 1, 1)}
    assert comparison.changes()["wide"] == nothing
    assert found.policies[0].shares()["wide"] == proportion(1, 0, 1)
    assert found.kernel.shares()["wide"] == proportion(0, 1, 1)


def test_wake_flags_are_read_as_the_recorded_kernel_numbers_them(tmp_path: Path) -> None:
    sync = {**KNOWN, "wake_flags": 0x18}  # WF_TTWU | WF_SYNC of 6.12; in 5.10 WF_SYNC is 1
    rows = [wake(10, 0, 1, 2, prev=2, chosen=0, **sync, this_load=1000, prev_load=0, waker_h_load=5)]
    trace = of_rows(tmp_path, rows)
    found = contrast(trace, policies(trace, "own", "5.10"))
    assert [judged.decisions["cpu"].tolist() for judged in found.policies] == [[0], [0]]


def test_written_out(tmp_path: Path) -> None:
    trace = traced(tmp_path)
    found = contrast(trace, policies(trace, "own", "own+nak-affine"))
    data = found.to_json()
    json.dumps(data, allow_nan=False)
    assert data["statement"] == OPEN_LOOP
    write_parquet(tmp_path / "c.parquet", found)
    frame = pd.read_parquet(tmp_path / "c.parquet")
    assert len(frame) == 3 * 3
    assert frame["policy"].unique().tolist() == [KERNEL, "own", "own+nak-affine"]
    section = (Path(__file__).parents[2] / "docs" / "variants.md").read_text().partition("## The Parquet file")[2]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    assert {name.strip() for row in rows[1:] for name in row.split(",")} == set(frame.columns)


@pytest.mark.parametrize("kernel", ["5.12.0", "3.10.0-1160.el7.x86_64", "banana", ""])
def test_a_trace_of_an_unknown_kernel_can_only_be_validated(tmp_path: Path, kernel: str) -> None:
    trace = traced(tmp_path, kernel=kernel)
    chosen = policies(trace, "6.12", "6.12+nak-affine")
    with pytest.raises(ModelError, match="only 'wakescope validate --policy RELEASE'"):
        contrast(trace, chosen)
    with pytest.raises(ModelError, match="only 'wakescope validate --policy RELEASE'"):
        named("own", trace.meta)
    assert validate(trace, chosen[0][1]).all.decisions == 3


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
    with pytest.raises(ModelError, match="nak-affine-shared makes no sense where wake_affine always refuses"):
        named("own+nak-affine+nak-affine-shared", trace.meta)
    with pytest.raises(ModelError):
        named("3.0", trace.meta)
    with pytest.raises(TraceError, match="HZ"):
        contrast(traced(tmp_path / "no-hz", hz=0), policies(trace, "own"))
