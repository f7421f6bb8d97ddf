# SPDX-License-Identifier: GPL-2.0-only
"""record_wakee, wake_wide, and flips rebuilt over a trace."""

from __future__ import annotations

import numpy as np
import pytest
from wakescope.model.compiled import plain
from wakescope.model.flips import check_flips, record_wakee
from wakescope.model.kernels import kernel
from wakescope.schema import NEVER, Outcome
from wakescope.tests.maketrace import records, wake

from .decisions import HZ, decide

RECORD_TABLE = [
    # jiffies, flips, stamp, last -> flips, stamp, last; the wakee is 7
    (1000, 8, 900, 7, (8, 900, 7)),
    (1000, 8, 900, 3, (9, 900, 7)),
    (1150, 8, 900, 7, (8, 900, 7)),  # exactly HZ later is not after
    (1151, 8, 900, 7, (4, 1151, 7)),
    (1151, 9, 900, 3, (5, 1151, 7)),  # halved first, then raised
    (99999, 8, 900, 7, (4, 99999, 7)),  # one halving however long the gap
    (1000, 2**32 - 1, 1000, 3, (0, 1000, 7)),
]


@pytest.mark.parametrize("function", [record_wakee, plain(record_wakee)])
@pytest.mark.parametrize(("jiffies", "flips", "stamp", "last", "after"), RECORD_TABLE)
def test_record_wakee(function, jiffies, flips, stamp, last, after):
    assert function(jiffies, HZ, flips, stamp, last, 7) == after


WIDE_TABLE = [
    # waker's flips before, another wakee?, wakee's flips, factor -> wide
    (15, False, 4, 4, False),  # 15 < 4*4
    (16, False, 4, 4, True),
    (15, True, 4, 4, True),  # this very wakeup is the 16th flip
    (100, False, 3, 4, False),  # the slave is below the factor
    (3, False, 100, 4, False),
    (4, False, 16, 4, True),  # the roles may be the other way round
    (65536, False, 65536, 65536, True),  # 65536 * 65536 wraps to 0 in 32 bits
]


@pytest.mark.parametrize(("waker", "other", "wakee", "factor", "wide"), WIDE_TABLE)
def test_wake_wide(waker, other, wakee, factor, wide):
    last = 9 if other else 2
    result = decide(kernel("6.12"), waker_flips=waker, wakee_flips=wakee, llc_size=factor, waker_last_wakee=last)
    assert result["wide"] == wide


def test_unknown_flips_leave_only_some_decisions_open():
    assert decide(kernel("6.12"), waker_flips=NEVER, this_load=100)["certainty"] == 2
    assert decide(kernel("6.12"), waker_flips=NEVER, idle=[2])["certainty"] == 0  # prev either way


def history(wakes, **changes):
    """Wakeups of waker 1 with the kernel's values as record_wakee makes them; changes: row -> column -> value."""
    state, rows = (0, 1000, 0), []
    for i, (jiffies, wakee, outcome) in enumerate(wakes):
        flips, stamp, last = state
        rows.append(
            wake(
                i * 100, 0, 1, wakee, 0, 0, outcome, jiffies=jiffies, jiffies_exit=jiffies,
                waker_flips=flips, waker_decay_ts=stamp, waker_last_wakee=last,
            )
        )  # fmt: skip
        if outcome == Outcome.PLACED:
            state = plain(record_wakee)(jiffies, HZ, flips, stamp, last, wakee)
    table = records("wakeups", rows)
    for row, columns in changes.items():
        for column, value in columns.items():
            table[column][int(row.removeprefix("row"))] = value
    return table


PLACED = Outcome.PLACED
WAKES = [(1000, 2, PLACED), (1010, 3, PLACED), (1020, 3, Outcome.PINNED), (1300, 2, PLACED), (1310, 2, PLACED)]


def counts(check):
    return check.matched, check.unchanged, check.unexplained, check.lost


def test_flips_of_a_trace_match():
    assert counts(check_flips(history(WAKES), HZ)) == (4, 0, 0, 0)


def test_order_of_rows_does_not_matter():
    assert counts(check_flips(history(WAKES)[::-1], HZ)) == (4, 0, 0, 0)


def test_a_wakeup_that_never_came_to_record_wakee():
    table = history([(1000, 2, PLACED), (1010, 3, PLACED)], row1={"waker_flips": 0, "waker_last_wakee": 0})
    assert counts(check_flips(table, HZ)) == (0, 1, 0, 0)


def test_anything_else_is_unexplained_and_resynchronises():
    table = history(WAKES, row1={"waker_flips": 40})
    check = check_flips(table, HZ)
    assert counts(check) == (2, 0, 2, 0)
    assert check.rows.tolist() == [1, 2]


def test_a_pinned_wakee_must_not_count():
    table = history([(1000, 2, Outcome.PINNED), (1010, 3, PLACED)], row1={"waker_flips": 1, "waker_last_wakee": 2})
    assert counts(check_flips(table, HZ)) == (0, 0, 1, 0)


def test_steps_across_a_loss_are_not_judged():
    table = history(WAKES, row1={"waker_flips": 40})
    assert counts(check_flips(table, HZ, [(50, 150)])) == (2, 0, 0, 2)


def test_halving_in_a_later_jiffy_than_the_record_saw():
    wakes = [(1250, 2, PLACED), (1300, 3, PLACED)]
    table = history(wakes, row0={"waker_flips": 8}, row1={"waker_flips": 5, "waker_decay_ts": 1251})
    assert counts(check_flips(table, HZ)) == (0, 0, 1, 0)
    table["jiffies_exit"][0] = 1252
    assert counts(check_flips(table, HZ)) == (1, 0, 0, 0)


def test_wakers_are_told_apart_by_start():
    table = np.concatenate([history(WAKES), history(WAKES)])
    table["waker_start"][len(WAKES) :] = 99
    assert counts(check_flips(table, HZ)) == (8, 0, 0, 0)
