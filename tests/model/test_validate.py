# SPDX-License-Identifier: GPL-2.0-only
"""Agreement with a kernel, counted on hand-made traces."""

from __future__ import annotations

import json

import numpy as np
import pytest
from wakescope.errors import ModelError, TraceError
from wakescope.model.kernels import kernel
from wakescope.model.replay import replay
from wakescope.model.validate import Share, validate, wilson
from wakescope.schema import NEVER, Outcome
from wakescope.tests.maketrace import make_trace

from .decisions import BOX, HZ, SYNC, decision, random_decisions

ALONE = {"this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1}


@pytest.fixture
def trace(tmp_path):
    """Four placed wakeups: agreed, wrong by an LLC, undecidable, raced and wrong; and one each not placed."""
    rows = [
        decision(idle=[2], chosen=2, affine_attempts=1, affine_moves=0),
        decision(idle=[2], chosen=6, affine_attempts=1, affine_moves=1),
        decision(wake_flags=NEVER, chosen=0, **ALONE),
        decision(idle=[2], idle_exit=[], chosen=3),
        decision(chosen=2),
        decision(chosen=2),
        decision(wake_flags=SYNC, chosen=0, affine_attempts=1, affine_moves=1, **ALONE),
    ]
    table = np.concatenate(rows)
    table["ts"], table["seq"] = np.arange(len(table)), np.arange(len(table))
    table["outcome"][4], table["outcome"][5] = Outcome.PINNED, Outcome.FORK
    return make_trace(tmp_path / "t.wake", {"wakeups": table}, BOX, kernel="6.12.100", sched_features=["WA_IDLE"])


def test_counts(trace):
    found = validate(trace).to_json()
    assert {name: found[name] for name in ("decisions", "exact", "raced", "undecidable")} == {
        "decisions": 5,
        "exact": 3,
        "raced": 1,
        "undecidable": 1,
    }
    assert found["agree_all"] == 2 / 5
    assert found["agree_exact"] == 2 / 3
    assert found["impossible"] == 2
    assert found["doubts"] == {"SYNC": 1}
    assert found["not_placed"] == {"PINNED": 1}
    forks = found["forks"]
    assert (forks["decisions"], forks["undecidable"], forks["doubts"]) == (1, 1, {"GROUPS": 1})
    assert forks["disagreements"] == []  # it may go anywhere
    assert found["release"] == "6.12.100"
    assert found["unseen"] == []
    json.dumps(found)


def test_shares_by_path_and_distance(trace):
    found = validate(trace).to_json()
    counts = {name: (s["decisions"], s["agree"]) for name, s in found["by_path"].items()}
    assert counts == {"TARGET": (3, 1), "FALLBACK_TARGET": (1, 1), "UNDECIDABLE": (1, 0)}
    counts = {name: (s["decisions"], s["agree"]) for name, s in found["by_distance"].items()}
    assert counts == {"CPU": (1, 1), "SMT": (1, 0), "LLC": (2, 1), "CROSS": (1, 0)}


def test_affine_verdicts_against_the_counters(trace):
    """Exact decisions with counters: the second's nr_wakeups_affine rose though the model keeps prev."""
    found = validate(trace).to_json()["affine"]
    assert (found["attempts"]["decisions"], found["attempts"]["agree"]) == (3, 3)
    assert (found["moves"]["decisions"], found["moves"]["agree"]) == (3, 2)


def test_certain_disagreements_come_first_with_their_inputs(trace):
    worst = validate(trace).disagreements
    assert [(entry["wakeup"], entry["model"]["certainty"]) for entry in worst] == [(1, "EXACT"), (3, "RACED")]
    assert worst[0]["kernel_cpu"] == 6
    assert worst[0]["model"]["path"] == "TARGET"
    assert worst[0]["inputs"]["idle"] == [4]


def test_a_policy_may_be_given(trace):
    found = validate(trace, kernel("6.12") | {"prev_idle": 0})
    assert found.kernel.release == "given"


def test_a_model_agrees_with_itself(tmp_path):
    rows = random_decisions(3, BOX, 2000)
    rows["seq"] = np.arange(len(rows))
    rows["chosen_cpu"] = replay(rows, BOX, kernel("6.1.192"), HZ)["cpu"]
    mine = make_trace(tmp_path / "a.wake", {"wakeups": rows}, BOX, kernel="6.1.192")
    assert validate(mine).all.share == 1.0
    other = make_trace(tmp_path / "b.wake", {"wakeups": rows}, BOX, kernel="5.10.262")
    assert validate(other).all.share < 1.0


def test_what_cannot_be_validated(tmp_path):
    empty = make_trace(tmp_path / "a.wake", {"wakeups": decision()[:0]}, BOX)
    with pytest.raises(TraceError, match="no wakeups"):
        validate(empty)
    unknown = make_trace(tmp_path / "b.wake", {"wakeups": decision()}, BOX, kernel="4.4.1")
    with pytest.raises(ModelError, match="not modelled"):
        validate(unknown)


def test_wakeups_at_the_ends_are_left_out(tmp_path):
    """Some probes are attached before others: what is recorded before the last one or after the first is partial."""
    table = np.concatenate([decision(idle=[2], chosen=2 if 10 <= i < 20 else 6) for i in range(30)])
    table["ts"] = np.arange(30) * 10
    table["ts_exit"], table["seq"] = table["ts"] + 5, np.arange(30)
    found = validate(make_trace(tmp_path / "a.wake", {"wakeups": table}, BOX, attached_ts=100, detach_ts=196))
    assert (found.all.decisions, found.all.share, found.ends) == (10, 1.0, 20)
    assert validate(make_trace(tmp_path / "b.wake", {"wakeups": table}, BOX)).all.decisions == 30


def test_unknown_hz_is_said(tmp_path):
    trace = make_trace(tmp_path / "a.wake", {"wakeups": decision(chosen=2)}, BOX, hz=None, sched_features=["WA_IDLE"])
    assert validate(trace).kernel.unseen == ["HZ is unknown: taken as 250"]


def test_wilson():
    """0 of n: from 0 to z^2 / (n + z^2); a half: as far to either side."""
    assert wilson(0, 10) == pytest.approx((0.0, 3.8415 / 13.8415), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (None, None)
    assert Share(0, 0).share is None
