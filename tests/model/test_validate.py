# SPDX-License-Identifier: GPL-2.0-only
"""Agreement with a kernel, counted on hand-made traces."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console
from wakescope import trace as traces
from wakescope.errors import ModelError, TraceError
from wakescope.model.kernels import kernel
from wakescope.model.replay import Certainty, replay
from wakescope.model.validate import Share, validate, wilson
from wakescope.model.wakeup import Doubt
from wakescope.schema import NEVER, NEVER64, Outcome
from wakescope.show import show_validation
from wakescope.tests.maketrace import make_trace, records, switch

from .decisions import BOX, HZ, SYNC, decision, random_decisions

MOVE = {"ts": 12, "cpu": 7, "pid": 9, "orig_cpu": 5, "dest_cpu": 0}
ALONE = {"this_nr_running": 1, "this_h_nr_queued": 1, "this_h_nr_runnable": 1}


def made(path, rows, tables=(), **meta):
    """A trace of decisions on BOX, one every 10 ns, each of which took 5, under 6.12 unless meta says otherwise."""
    table = np.concatenate(rows)
    table["ts"], table["seq"] = np.arange(len(table)) * 10, np.arange(len(table))
    table["ts_exit"] = table["ts"] + 5
    meta = {"kernel": "6.12.100", "sched_features": ["WA_IDLE"], **meta}
    return make_trace(path, {"wakeups": table, **dict(tables)}, BOX, **meta)


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


# A fact is missed, but the CPU is the same either way; whether wake_affine pulls, is not.
OPEN = {
    "SYNC": {"idle": [2], "wake_flags": NEVER, **ALONE},
    "WIDE": {"idle": [2], "waker_flips": NEVER},
    "ALONE": {"idle": [2], "wake_flags": SYNC, "this_nr_running": NEVER},
    "WEIGHT": {"idle": [3], "this_load": NEVER64},
}


@pytest.mark.parametrize("doubt", OPEN)
def test_affine_verdicts_that_a_missed_fact_leaves_open_do_not_count(tmp_path, doubt):
    row = decision(affine_attempts=1, affine_moves=0, **OPEN[doubt], chosen=OPEN[doubt]["idle"][0])
    result = replay(row, BOX, kernel("6.12.100"), HZ)[0]
    assert (result["certainty"], result["doubt"] & Doubt[doubt].value) == (Certainty.EXACT, Doubt[doubt].value)
    found = validate(made(tmp_path / "a.wake", [row]))
    assert (found.certainty["EXACT"].agree, found.affine) == (1, {})


def test_affine_verdicts_of_raced_decisions_do_not_count(tmp_path):
    found = validate(made(tmp_path / "a.wake", [decision(idle=[2], idle_exit=[], chosen=2, affine_attempts=1)]))
    assert (found.certainty["RACED"].decisions, found.affine) == (1, {})


NO_RULE = ["NO_WA_IDLE", "NO_WA_WEIGHT"]
COUNTED = [
    # what is known, features -> rises of nr_wakeups_affine_attempts, of nr_wakeups_affine to 5.15.110, and since
    ({"idle": [2]}, ["WA_IDLE"], (1, 1, 0)),  # PREV_IDLE
    ({"idle": [0]}, ["WA_IDLE"], (1, 1, 1)),  # THIS_IDLE
    ({"idle": [0, 2]}, ["WA_IDLE"], (1, 1, 0)),  # BOTH_IDLE
    ({"wake_flags": SYNC, **ALONE}, ["WA_IDLE"], (1, 1, 1)),  # SYNC
    ({"this_load": 0}, ["WA_IDLE"], (1, 1, 1)),  # WEIGHT_THIS
    ({"this_load": 9000}, ["WA_IDLE"], (1, 0, 0)),  # WEIGHT_PREV
    ({}, NO_RULE, (1, 0, 0)),  # UNDECIDED
    ({"prev": 0}, ["WA_IDLE"], (0, 0, 0)),  # SAME
]


@pytest.mark.parametrize(("known", "features", "rises"), COUNTED)
def test_what_the_counters_count(tmp_path, known, features, rises):
    attempts, picked, pulled = rises
    for release, moves in (("5.15.110", picked), ("5.15.111", pulled)):
        row = decision(affine_attempts=attempts, affine_moves=moves, chosen=2, **known)
        path = tmp_path / release
        affine = validate(made(path, [row], kernel=release, sched_features=[*features, "SIS_UTIL"])).affine
        assert {name: (share.decisions, share.agree) for name, share in affine.items()} == {
            "attempts": (1, 1),
            "moves": (1, 1),
        }


def test_certain_disagreements_come_first_with_their_inputs(trace):
    worst = validate(trace).disagreements
    assert [(entry["wakeup"], entry["model"]["certainty"]) for entry in worst] == [(1, "EXACT"), (3, "RACED")]
    assert worst[0]["kernel_cpu"] == 6
    assert worst[0]["model"]["path"] == "TARGET"
    assert worst[0]["inputs"]["idle"] == [4]


# The model's CPU is 2, and 3, 1 and 5 are ever farther from it. The last two are raced, and undecidable: 0 or 2.
WRONG = [decision(idle=[2], chosen=cpu) for cpu in 8 * [3, 1, 5]]
WRONG += [decision(idle=[2], idle_exit=[], chosen=5), decision(wake_flags=NEVER, chosen=5, **ALONE)]
FARTHEST = [2, 5, 8, 11, 14, 17, 20, 23, 1, 4, 7, 10, 13, 16, 19, 22, 0, 3, 6, 9]


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_the_twenty_farthest_disagreements_are_kept(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(traces, "CHUNK", chunk)
    found = validate(made(tmp_path / "a.wake", WRONG))
    assert found.impossible == 26
    assert [entry["wakeup"] for entry in found.disagreements] == FARTHEST


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_certain_disagreements_come_before_farther_ones_that_are_not(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(traces, "CHUNK", chunk)
    found = validate(made(tmp_path / "a.wake", [*WRONG[:23:-1], *WRONG[:3]]))
    assert [entry["wakeup"] for entry in found.disagreements] == [4, 3, 2, 1, 0]


def test_a_trace_in_pieces_sums_up_to_the_whole(tmp_path, monkeypatch):
    """Every number, and every row number: some wakeups are left out at the beginning, too."""
    rows = random_decisions(5, BOX, 400, unknown=0.1)
    rng = np.random.default_rng(6)
    rows["outcome"] = rng.choice(
        [Outcome.PLACED, Outcome.FORK, Outcome.PINNED, Outcome.QUEUED], 400, p=[0.7, 0.1, 0.1, 0.1]
    )
    rows["affine_attempts"], rows["affine_moves"] = rng.integers(0, 2, 400), rng.integers(0, 2, 400)
    rows["idle_exit"][::3] = 0
    rows["this_nr_running_exit"][::2] = 7
    rows["chosen_cpu"][rng.random(400) < 0.05] = -1
    calls = {"consults": records("consults", [])}
    deep = made(tmp_path / "a.wake", [rows], calls, tier="deep", probes=["available_idle"], attached_ts=75)
    whole = validate(deep).to_json()
    assert (whole["ends"], len(whole["out_of_order"]), len(whole["causes"])) == (8, 20, 4)
    assert min(entry["wakeup"] for entry in whole["disagreements"]) >= 8
    for entry in whole["disagreements"]:
        assert entry["inputs"]["seq"] == entry["wakeup"]
    monkeypatch.setattr(traces, "CHUNK", 30)
    assert validate(deep).to_json() == whole


def test_what_flickered_while_the_kernel_decided(tmp_path):
    """A CPU that ceased to idle, a task that came to the waker's CPU: other records show it."""
    rows = [decision(idle=[2], chosen=2), decision(wake_flags=SYNC, chosen=0, **ALONE)]
    assert validate(made(tmp_path / "a.wake", rows)).certainty["EXACT"].decisions == 2
    tables = {"switches": records("switches", [switch(3, 2, 0, 9)]), "migrations": records("migrations", [MOVE])}
    found = validate(made(tmp_path / "b.wake", rows, tables))
    assert (found.certainty["EXACT"].decisions, found.certainty["RACED"].decisions) == (0, 2)
    del tables["migrations"]
    found = validate(made(tmp_path / "c.wake", rows, tables))
    assert (found.certainty["EXACT"].decisions, found.certainty["RACED"].decisions) == (1, 1)


def jump(path, lost=0, **meta):
    """A trace of ten wakeups whose waker's flips leap before the sixth, with records lost just there."""
    table = np.concatenate([decision(idle=[2], chosen=2, waker_flips=40 if i >= 5 else 0) for i in range(10)])
    table["ts"] = np.arange(10) * 10
    table["ts_exit"], table["seq"] = table["ts"] + 5, np.arange(10) + lost * (np.arange(10) >= 5)
    return make_trace(path, {"wakeups": table}, BOX, **meta)


@pytest.mark.parametrize(
    ("lost", "meta", "flips", "clean"),
    [
        (0, {}, (8, 1, 0), 1.0),
        (3, {}, (8, 0, 1), 80 / 90),  # from 40 to 50 of 0 to 90
        (0, {"attached_ts": 50}, (4, 0, 0), 1.0),
        (0, {"detach_ts": 45}, (4, 0, 0), 1.0),
    ],
)
def test_flips_are_judged_where_nothing_was_lost_and_every_probe_attached(tmp_path, lost, meta, flips, clean):
    found = validate(jump(tmp_path / "a.wake", lost, **meta))
    assert (found.flips.matched, found.flips.unexplained, found.flips.lost) == flips
    assert found.clean_share == pytest.approx(clean)


def said(trace, found):
    """What validate prints, in one line."""
    out = io.StringIO()
    show_validation(Console(file=out, width=200), trace, found)
    return " ".join(out.getvalue().split())


def test_a_policy_may_be_given(trace):
    found = validate(trace, kernel("6.12") | {"prev_idle": 0}, "6.12+mine")
    assert (found.to_json()["release"], found.to_json()["given"]) == ("6.12+mine", True)
    assert "(policy 6.12+mine, given with --policy; " in said(trace, found)
    found = validate(trace)
    assert (found.to_json()["release"], found.to_json()["given"]) == ("6.12.100", False)
    assert "(policy of 6.12.100; " in said(trace, found)


@pytest.mark.parametrize("release", ["6.12.100", "4.4.1"])
def test_notes_on_the_trace_hold_under_a_policy_given(tmp_path, release):
    meta = {"kernel": release, "tier": "tracepoint", "hypervisor": True, "not_stock": ["a scheduler of its own"]}
    trace = make_trace(tmp_path / "a.wake", {"wakeups": decision(chosen=2)}, BOX, hz=None, **meta)
    found = validate(trace, kernel("6.1"), "6.1")
    for note, start in zip(found.kernel.unseen, ("tier tracepoint", "in a guest", "not stock: a", "HZ"), strict=True):
        assert note.startswith(start)
        assert note in said(trace, found)


def test_decisions_whose_cpu_is_not_known_count_apart(tmp_path):
    """Neither as disagreements nor, where the model does not know it either, as agreement."""
    rows = [decision(idle=[2], chosen=2), decision(idle=[2]), decision(wake_flags=NEVER, **ALONE)]
    rows += [decision(outcome=Outcome.FORK), decision(outcome=Outcome.PINNED)]
    trace = made(tmp_path / "a.wake", rows)
    found = validate(trace)
    assert (found.all.decisions, found.all.agree, found.cpu_unknown, found.impossible) == (1, 1, 2, 0)
    assert (found.forks.all.decisions, found.forks.cpu_unknown, found.not_placed) == (0, 1, {"PINNED": 1})
    assert (found.disagreements, found.doubts, list(found.distance)) == ([], {}, ["CPU"])
    assert "left out: 3 decisions of which the trace does not say the CPU" in said(trace, found)


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
    found = validate(make_trace(tmp_path / "a.wake", {"wakeups": table}, BOX, attached_ts=100, detach_ts=195))
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
