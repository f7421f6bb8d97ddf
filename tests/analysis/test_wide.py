# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
import pytest
from wakescope.analysis.wide import df_wide, is_wide, llc_cores
from wakescope.tests.maketrace import task, topology, wake

TASKS = [task(1, b"boss"), task(2, b"worker"), task(3, b"other")]


def test_the_rule_at_its_edges():
    u4 = np.uint32
    cases = [
        (4, 4, 4, False),
        (16, 4, 4, True),
        (15, 4, 4, False),
        (4, 16, 4, True),
        (100, 3, 4, False),
        (0, 0, 4, False),
    ]
    for a, b, factor, expected in cases:
        assert is_wide(np.array([a], u4), np.array([b], u4), np.array([factor], u4)).tolist() == [expected]


def test_the_product_wraps_as_the_kernels_does():
    """0x10000 * 0x10000 is 0 in 32 bits, so any master is large enough."""
    big = np.array([0x10000], np.uint32)
    assert is_wide(big, big, big).tolist() == [True]


def test_llc_in_cores_follows_the_chain_and_else_sysfs():
    smt = topology(cores=4, threads=2)
    assert llc_cores(smt).tolist() == [4] * 8
    smt.domains.clear()
    assert llc_cores(smt).tolist() == [4] * 8
    assert llc_cores(topology(llcs=2, cores=3)).tolist() == [3] * 6
    assert llc_cores(topology(nodes=2, cores=1, threads=2)).tolist() == [2] * 4  # SMT is the LLC: groups are threads


def test_pairs_say_how_near_they_are_and_what_cores_would_change(trace):
    flips = {"llc_size": 8, "waker_decay_ts": 1_000_000, "waker_last_wakee": 2}
    made = trace(
        topology(cores=4, threads=2),
        tasks=TASKS,
        wakeups=[
            wake(10, 0, 1, 2, 0, 0, waker_flips=64, wakee_flips=8, **flips),  # wide: 8 >= 8, 64 >= 64
            wake(20, 0, 1, 2, 0, 0, waker_flips=16, wakee_flips=4, **flips),  # only in cores: 4 >= 4, 16 >= 16
            wake(30, 0, 1, 2, 0, 0, waker_flips=16, wakee_flips=0, **flips),  # neither
            wake(40, 0, 1, 3, 0, 0, waker_flips=63, wakee_flips=8, **flips),  # wide: record_wakee makes it 64
        ],
    )
    table = df_wide(made).set_index("wakee")
    assert table.loc["worker:2", ["decisions", "wide", "wide_in_cores", "changed"]].tolist() == [3, 1, 2, 1]
    assert table.loc["worker:2", "margin_max"] == 1
    assert table.loc["worker:2", "margin_p50"] == 0.5  # min(4/8, 16/32)
    assert table.loc["other:3", "wide_share"] == 1
    assert df_wide(made, task="other")["wakee"].tolist() == ["other:3"]


@pytest.mark.parametrize("wakeups", [[], [wake(10, 0, 1, 2, 0, 0, outcome=2)]])
def test_nothing_placed_nothing_said(trace, wakeups):
    assert df_wide(trace(tasks=TASKS, wakeups=wakeups)).empty
