# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.analysis.flips import df_flip_check, df_flippers, df_flips, df_flips_over_time
from wakescope.errors import TraceError
from wakescope.schema import Outcome
from wakescope.tests.maketrace import task, wake

HZ = 250
TASKS = [task(1, b"waker"), task(2, b"two"), task(3, b"three")]


def state(flips, stamp, last):
    return {"waker_flips": flips, "waker_decay_ts": stamp, "waker_last_wakee": last}


def checks(trace):
    return df_flip_check(trace).set_index("check")["wakeups"].loc[lambda s: s > 0].to_dict()


def test_the_rule_explains_flips_and_decays(trace):
    made = trace(
        tasks=TASKS,
        meta={"hz": HZ},
        wakeups=[
            wake(10, 0, 1, 2, 0, 0, jiffies=1000, **state(8, 900, 3)),  # flips
            wake(20, 0, 1, 2, 0, 0, jiffies=1100, **state(9, 900, 2)),  # same wakee, not due
            wake(30, 0, 1, 3, 0, 0, jiffies=1150, **state(9, 900, 2)),  # exactly HZ: not due
            wake(40, 0, 1, 2, 0, 0, jiffies=1151, **state(10, 900, 3)),  # due: 10 / 2, and a flip
            wake(50, 0, 1, 2, 0, 0, jiffies=9999, **state(6, 1151, 2)),
        ],
    )
    assert df_flips(made)["after"].tolist() == [9, 9, 10, 6, 3]
    assert df_flips(made)["decayed"].tolist() == [False, False, False, True, True]
    assert checks(made) == {"rule": 4, "last": 1}
    row = df_flippers(made).iloc[0]
    assert (row["task"], row["wakeups"], row["flipped"], row["decayed"], row["highest"], row["last"]) == (
        "waker:1", 5, 3, 2, 10, 3,
    )  # fmt: skip


def test_each_class_of_check(trace):
    def pair(start, first, second, **more):
        """Two wakeups of a waker of their own; the first one's class is asked for."""
        pid = 100 + start
        return [
            wake(start, 0, pid, 2, 0, 0, jiffies=1000, **first, **more),
            wake(start + 1, 0, pid, 2, 0, 0, jiffies=1001, **second),
        ]

    for first, second, more, expected in [
        (state(4, 900, 3), state(5, 900, 2), {}, "rule"),
        (state(4, 750, 3), state(3, 1001, 2), {"jiffies_exit": 1002}, "tick"),  # due one jiffy after it was read
        (state(4, 740, 3), state(3, 1002, 2), {"jiffies_exit": 1002}, "tick"),  # due, and stamped later
        (state(4, 740, 3), state(3, 1003, 2), {"jiffies_exit": 1002}, "unexplained"),  # later than it can be
        (state(4, 900, 3), state(3, 1002, 2), {"jiffies_exit": 1002}, "unexplained"),  # was not due
        (state(4, 900, 3), state(4, 900, 3), {}, "unchanged"),
        (state(4, 900, 3), state(5, 900, 2), {"outcome": Outcome.WAKELIST}, "reached"),
        (state(4, 900, 3), state(4, 900, 3), {"outcome": Outcome.PINNED}, "rule"),
        (state(4, 900, 3), state(7, 900, 2), {}, "unexplained"),
        (state(4, 900, 3), state(5, 901, 2), {}, "unexplained"),
    ]:
        made = trace(tasks=TASKS, meta={"hz": HZ}, wakeups=pair(10, first, second, **more))
        assert checks(made) == {"last": 1, expected: 1}, (first, second, more)
        drift = (
            second["waker_flips"] - int(df_flips(made)["after"][0])
            if expected in ("unchanged", "reached", "unexplained")
            else 0
        )
        assert df_flips(made)["drift"].tolist() == [drift, 0]


def test_a_gap_in_the_ring_is_unknown_and_resynchronises(trace):
    made = trace(
        tasks=TASKS,
        meta={"hz": HZ},
        wakeups=[
            wake(10, 0, 1, 2, 0, 0, jiffies=1000, seq=0, **state(4, 900, 3)),
            wake(50, 0, 1, 2, 0, 0, jiffies=1000, seq=9, **state(77, 900, 3)),
            wake(60, 0, 1, 2, 0, 0, jiffies=1000, seq=10, **state(78, 900, 2)),
        ],
    )
    assert checks(made) == {"loss": 1, "rule": 1, "last": 1}


def test_at_the_edges_the_outcome_may_be_wrong(trace):
    made = trace(
        tasks=TASKS,
        meta={"hz": HZ, "attached_ts": 20, "detach_ts": 40},
        wakeups=[
            wake(10, 0, 1, 2, 0, 0, ts_exit=11, jiffies=1000, outcome=Outcome.WAKELIST, **state(4, 900, 3)),
            wake(30, 0, 1, 3, 0, 0, ts_exit=31, jiffies=1000, **state(5, 900, 2)),
            wake(39, 0, 1, 2, 0, 0, ts_exit=41, jiffies=1000, outcome=Outcome.WAKELIST, **state(6, 900, 3)),
            wake(50, 0, 1, 2, 0, 0, ts_exit=51, jiffies=1000, **state(7, 900, 2)),
        ],
    )
    assert checks(made) == {"edge": 3, "rule": 1}


def test_idle_tasks_of_two_cpus_have_flips_of_their_own(trace):
    made = trace(
        tasks=TASKS,
        meta={"hz": HZ},
        wakeups=[
            wake(10, 0, 0, 2, 0, 0, jiffies=1000, **state(4, 900, 2)),
            wake(20, 1, 0, 2, 0, 0, jiffies=1000, **state(9, 800, 2)),
            wake(30, 0, 0, 2, 0, 0, jiffies=1000, **state(4, 900, 2)),
        ],
    )
    assert checks(made) == {"rule": 1, "last": 2}


def test_over_time_in_equal_bins(trace):
    made = trace(
        tasks=TASKS,
        meta={"hz": HZ, "start_ts": 0, "stop_ts": 99},
        wakeups=[
            wake(10, 0, 1, 2, 0, 0, jiffies=1000, **state(4, 900, 3)),
            wake(19, 0, 1, 2, 0, 0, jiffies=1000, **state(5, 900, 2)),
            wake(99, 0, 1, 3, 0, 0, jiffies=1000, **state(5, 900, 2)),
        ],
    )
    table = df_flips_over_time(made, bins=10)
    assert table[["bin", "start_ms", "wakeups", "flipped", "highest", "last"]].to_numpy().tolist() == [
        [1, 1e-5, 2, 1, 5, 5],
        [9, 9e-5, 1, 1, 6, 6],
    ]


def test_without_hz_it_is_refused(trace):
    with pytest.raises(TraceError, match="HZ"):
        df_flips(trace(meta={"hz": None}))


def test_an_empty_trace(trace):
    assert df_flips(trace()).empty
    assert df_flips_over_time(trace()).empty
    assert df_flippers(trace()).empty
