# SPDX-License-Identifier: GPL-2.0-only
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wakescope.errors import TraceError
from wakescope.meta import _KINDS, FORMAT, read_meta

RING = {"ring": "wakeup", "cpu": 0, "tried": 9, "lost": 0}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Reads a meta.json that holds the members given."""
    folder = tmp_path_factory.mktemp("meta")

    def read(**members):
        (folder / "meta.json").write_text(json.dumps({"format": FORMAT, **members}))
        return read_meta(folder)

    return read


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"hz": 250, "rings": [RING], "rows": {"wakeups": 9}},
        {"command": None, "start_ts": 5, "stop_ts": 5, "new": 1},
    ],
)
def test_what_a_recorder_writes_is_read(read, members):
    assert read(**members) == {"format": FORMAT, **members}


@pytest.mark.parametrize(
    "members",
    [
        *({"hz": hz} for hz in ("x", -1, True, 2.5)),
        *({"rings": rings} for rings in (5, None, [{}], [{**RING, "lost": "1"}], {"wakeup": RING})),
        *({"rows": rows} for rows in ([], None, {"wakeups": "9"})),
        *({"vmstat": vmstat} for vmstat in (None, {"before": 5}, {"before": {"numa_hit": None}})),
        *({"start_ts": ts, "stop_ts": 8} for ts in (9, "x", None)),
    ],
)
def test_what_no_recorder_writes_is_refused_in_one_line(read, members):
    with pytest.raises(TraceError, match=r"meta\.json.*damaged") as raised:
        read(**members)
    assert "\n" not in str(raised.value)


@given(st.sampled_from(sorted(_KINDS)), JSON)
def test_any_value_is_read_or_refused(read, name, value):
    try:
        assert read(**{name: value})[name] == value
    except TraceError:
        assert value is None or type(value) is not str or _KINDS[name] is not str
