# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.analysis.flips import df_flip_check
from wakescope.analysis.latency import df_latency
from wakescope.analysis.loss import df_clean
from wakescope.analysis.scale import scale
from wakescope.analysis.tasks import df_tasks, wakee_codes
from wakescope.errors import OutputError
from wakescope.tests.maketrace import switch, task, wake
from wakescope.trace import Trace


@pytest.fixture
def small(trace):
    rings = [
        {"ring": ring, "cpu": 0, "tried": n, "lost": 0} for ring, n in (("wakeup", 2), ("switch", 4), ("event", 2))
    ]
    return trace(
        meta={"start_ts": 500, "stop_ts": 9_999, "rings": rings},
        tasks=[task(1, b"a", ts=500), task(2, b"b", ts=500)],
        wakeups=[
            wake(1000, 0, 1, 2, 0, 0, waker_flips=3, waker_decay_ts=999_990),
            wake(3000, 0, 1, 2, 0, 0, waker_flips=4, waker_decay_ts=999_990, waker_last_wakee=2),
        ],
        switches=[switch(600, 0, 0, 1), switch(2000, 0, 1, 2), switch(2500, 0, 2, 1), switch(5000, 0, 1, 2)],
    )


def test_a_trace_repeated_says_the_same_so_many_times(small, tmp_path):
    assert scale(small, tmp_path / "big.wake", 17) == 18
    big = Trace.open(tmp_path / "big.wake")
    assert df_latency(big)["waits"].tolist() == [6]
    assert df_latency(big)["max"].tolist() == df_latency(small)["max"].tolist() == [2.0]
    assert df_clean(big)[["lost", "clean"]].to_numpy().tolist() == [[0, 1]] * 3
    once, many = (df_flip_check(t).set_index("check")["wakeups"] for t in (small, big))
    assert many.tolist() == (3 * once).tolist()
    labels = df_tasks(big)["label"].to_numpy()
    assert labels[wakee_codes(big)].tolist() == ["b:2", "b:2", "b:2#2", "b:2#2", "b:2#3", "b:2#3"]
    assert big.span == (500, 500 + 3 * 9500)


def test_an_existing_output_is_not_touched(small, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(OutputError, match="there"):
        scale(small, tmp_path / "there", 10)
