# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wakescope.analysis.inputs import columns, losses, overlaps_loss
from wakescope.errors import TraceError
from wakescope.tests.maketrace import records, switch, task, wake


def test_a_table_out_of_order_is_refused_by_name(trace, monkeypatch):
    made = trace(tasks=[task(1)], switches=[switch(10, 0, 0, 1), switch(20, 0, 1, 0)])
    monkeypatch.setattr(type(made), "columns", lambda self, table, names: {n: np.array([1, 0]) for n in names})
    with pytest.raises(TraceError, match=r"switches\.parquet is not in time order"):
        columns(made, "switches", "cpu")


def test_a_cpu_the_machine_does_not_have_is_refused_by_name(trace):
    made = trace(wakeups=[wake(10, 0, 1, 2, 0, 9)])
    with pytest.raises(TraceError, match=r"wakeups\.parquet has CPU 9"):
        columns(made, "wakeups", "chosen_cpu")


def test_each_column_is_read_once(trace, monkeypatch):
    made = trace(switches=[switch(10, 0, 0, 1)])
    read = []
    original = type(made).columns
    monkeypatch.setattr(
        type(made), "columns", lambda self, table, names: read.append(names) or original(self, table, names)
    )
    columns(made, "switches", "cpu")
    columns(made, "switches", "cpu", "next_pid")
    assert read == [["ts", "cpu"], ["next_pid"]]


def test_windows_of_all_cpus_are_merged(trace):
    rows = records(
        "switches", [switch(t, c, 0, 0, seq=s) for t, c, s in ((10, 0, 0), (20, 1, 0), (30, 0, 5), (40, 1, 7))]
    )
    made = trace(switches=rows)
    assert losses(made)["switch"].tolist() == [[10, 40]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=5),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=8),
)
def test_overlap_is_strictly_inside(gaps, spans):
    windows, at = [], 0
    for gap, length in gaps:
        windows.append((at + gap + 1, at + gap + 1 + length))
        at = windows[-1][1]
    begin = np.array([s for s, _ in spans], np.int64)
    end = np.array([s + n for s, n in spans], np.int64)
    found = overlaps_loss(np.array(windows, np.int64).reshape(-1, 2), begin, end)
    assert found.tolist() == [
        any(s < close and e > open_ for open_, close in windows) for s, e in zip(begin, end, strict=True)
    ]
