# SPDX-License-Identifier: GPL-2.0-only
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from wakescope.analysis.match import first_after, last_before, next_same

rows = st.lists(st.tuples(st.integers(0, 20), st.integers(-1, 3)), max_size=30).map(sorted)


def split(pairs):
    return np.array([k for _, k in pairs], np.int32), np.array([t for t, _ in pairs], np.uint64)


@settings(deadline=None)  # the first call compiles
@given(rows, rows)
def test_neighbours_are_those_of_the_definition(events, at):
    key, ts = split(events)
    at_key, at_ts = split(at)
    before, after = last_before(key, ts, at_key, at_ts), first_after(key, ts, at_key, at_ts)
    for i, (moment, wanted) in enumerate(at):
        same = [j for j, (_, k) in enumerate(events) if k == wanted and k >= 0]
        assert before[i] == max((j for j in same if events[j][0] <= moment), default=-1)
        assert after[i] == min((j for j in same if events[j][0] > moment), default=-1)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(-1, 3), max_size=30))
def test_next_same(keys):
    found = next_same(np.array(keys, np.int64))
    for i, key in enumerate(keys):
        later = [j for j in range(i + 1, len(keys)) if keys[j] == key and key >= 0]
        assert found[i] == min(later, default=-1)
