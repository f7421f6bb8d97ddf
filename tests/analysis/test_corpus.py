# SPDX-License-Identifier: GPL-2.0-only
"""Real traces of stock kernels: what must hold there, and the same numbers computed another way."""

from pathlib import Path

import pandas as pd
import pytest
from wakescope.analysis.affine import Affine, Source, df_affine
from wakescope.analysis.balance import df_migrations
from wakescope.analysis.flips import df_flip_check
from wakescope.analysis.latency import Wait, df_latency, df_waits
from wakescope.analysis.loss import df_clean
from wakescope.analysis.numa import df_attempts
from wakescope.analysis.occupancy import BEGINS_WAIT
from wakescope.analysis.report import build_report
from wakescope.analysis.sections import SECTIONS
from wakescope.schema import Outcome
from wakescope.trace import Trace

CORPUS = sorted((Path(__file__).parent.parent / "corpus").glob("*.wake"))

pytestmark = pytest.mark.parametrize("trace", CORPUS, indirect=True, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def trace(request):
    return Trace.open(request.param)


def test_every_section_is_reported(trace):
    data = build_report(trace).to_json()
    assert set(data["sections"]) == set(SECTIONS)
    assert len(data["odd"]) == 3


def test_record_wakee_explains_every_change_of_flips(trace):
    check = df_flip_check(trace).set_index("check")["wakeups"]
    assert check[["unexplained", "unchanged", "reached", "loss"]].sum() == 0
    assert check[["rule", "tick"]].sum() > 0.7 * check.sum()


def test_waits_are_those_a_plain_loop_finds(trace):
    """One dictionary, in the order of time; the traces have no loss to think of."""
    assert df_clean(trace)[["lost", "unseen"]].to_numpy().sum() == 0
    wakeups, switches = trace.df("wakeups", ["ts", "wakee_pid", "outcome"]), trace.df("switches", ["ts", "next_pid"])
    events = [(ts, 1, pid) for ts, pid, outcome in wakeups.itertuples(index=False) if outcome in BEGINS_WAIT]
    events += [(ts, 0, pid) for ts, pid in switches.itertuples(index=False)]
    begun, waits = {}, []
    for ts, is_wakeup, pid in sorted(events):
        if is_wakeup:
            begun[pid] = ts
        elif pid in begun:
            waits.append(ts - begun.pop(pid))
    found = df_waits(trace)
    assert sorted(waits) == sorted(found["wait"][found["state"] == Wait.RUN])
    assert len(begun) == (found["state"] == Wait.CENSORED).sum()
    everything = sorted(waits + [trace.span[1] - ts for ts in begun.values()])
    row = df_latency(trace).iloc[0]
    assert row["p50"] == everything[(len(everything) + 1) // 2 - 1] / 1e3
    assert row["max"] == everything[-1] / 1e3


def test_every_tasks_migrations_form_a_chain(trace):
    """Each begins where the one before ended: none is missing and none made up."""
    rows = trace.df("wakeups", ["ts", "wakee_pid", "wakee_cpu", "chosen_cpu", "outcome"])
    rows = rows[(rows["chosen_cpu"] != rows["wakee_cpu"]) & ~rows["outcome"].isin([Outcome.FORK, Outcome.EXEC])]
    moved = trace.df("migrations", ["ts", "pid", "orig_cpu", "dest_cpu"])
    names = ["ts", "pid", "orig", "dest"]
    both = pd.concat([rows.drop(columns="outcome").set_axis(names, axis=1), moved.set_axis(names, axis=1)])
    before = both.sort_values("ts").groupby("pid")["dest"].shift()
    assert (before.notna() & (before != both.sort_values("ts")["orig"])).sum() == 0
    assert df_migrations(trace)["migrations"].sum() == len(both)


def test_numa_deadlines_follow_the_rule(trace):
    attempts = df_attempts(trace)
    assert (attempts["seen_late"][attempts["own"]] >= 0).all()


def test_the_llc_chosen_tells_what_schedstats_counted(trace):
    """Where both can tell, on kernels that count only pulls: the inference used where schedstats are off."""
    rows = df_affine(trace)
    measured = rows[rows["source"] == int(Source.SCHEDSTATS)]
    wakeups = trace.df("wakeups", ["cpu", "prev_cpu", "chosen_cpu"]).iloc[measured["row"]]
    llc = trace.topology.by_cpu("llc")
    this, prev, chosen = (llc[wakeups[c]] for c in ("cpu", "prev_cpu", "chosen_cpu"))
    told = (this != prev) & ((chosen == this) | (chosen == prev))
    granted = (measured["verdict"] == int(Affine.GRANTED)).to_numpy()
    assert (granted[told] == (chosen == this)[told]).all()
