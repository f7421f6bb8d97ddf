# SPDX-License-Identifier: GPL-2.0-only
"""What must hold of every trace of the corpus, and of the corpus as a whole."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from wakescope.analysis.report import build_report
from wakescope.model.fidelity import NAME
from wakescope.model.paths import df_replay
from wakescope.model.validate import validate
from wakescope.schema import NumaEvent, Outcome
from wakescope.testbox.campaign import CAMPAIGNS, KERNELS
from wakescope.trace import Trace

CORPUS = Path(__file__).parent / "corpus"
TRACES = sorted(CORPUS.glob("*.wake"))
MB = 1_000_000


def size(path):
    return sum(file.stat().st_size for file in path.iterdir())


@pytest.fixture(scope="module", params=TRACES, ids=lambda path: path.stem)
def trace(request):
    return Trace.open(request.param)


def test_the_corpus_is_broad_and_small():
    names = [NAME.fullmatch(path.name) for path in TRACES]
    assert all(names)
    held = {(name["kernel"], name["topology"], name["load"]) for name in names}
    assert len(KERNELS) >= 4
    assert len(CAMPAIGNS["corpus"].topologies) >= 3
    for machine in product(KERNELS, CAMPAIGNS["corpus"].topologies, ("tbench", "pgbench", "hackbench")):
        assert machine in held
    assert all(size(path) <= MB for path in TRACES)
    assert sum(size(path) for path in TRACES) <= 25 * MB


def test_numa_balancing_moved_tasks():
    moves = 0
    for path in TRACES:
        events = Trace.open(path).df("numa", ["event"])["event"]
        moves += int(events.isin([NumaEvent.MOVE, NumaEvent.SWAP]).sum())
    assert moves >= 5


def test_nothing_was_lost_and_placement_was_stock(trace):
    assert sum(ring["lost"] for ring in trace.meta["rings"]) == 0
    assert trace.meta["not_stock"] == []
    assert trace.clean_share() == 1.0


def test_every_chosen_cpu_is_allowed_and_online(trace):
    rows = trace.array("wakeups")
    rows = rows[rows["outcome"] == Outcome.PLACED]
    cpu = rows["chosen_cpu"].astype(np.int64)
    word = rows["allowed"][np.arange(len(cpu)), cpu // 64]
    allowed = (word >> (cpu % 64).astype(np.uint64) & np.uint64(1)).astype(bool)
    # a task whose mask changes while it is placed is put right by select_fallback_rq afterwards
    assert allowed.mean() > 0.999
    assert np.isin(cpu[allowed], [c.cpu for c in trace.topology.cpus if c.online]).all()


def test_the_model_is_exact(trace):
    found = validate(trace)
    exact = found.certainty["EXACT"]
    assert exact.agree == exact.decisions
    assert found.certainty["UNDECIDABLE"].decisions <= 0.01 * found.all.decisions
    assert found.flips.unexplained == 0
    assert found.flips.unchanged == 0
    for share in found.affine.values():
        assert share.agree == share.decisions


def test_the_model_is_exact_of_forks(trace):
    """Where what they look at was recorded; in the older traces of the corpus it was not, and they are undecidable."""
    found = validate(trace).forks
    exact = found.certainty["EXACT"]
    assert exact.agree == exact.decisions
    if trace.has("loads"):
        assert found.certainty["UNDECIDABLE"].decisions == 0
        assert exact.decisions >= 0.9 * found.all.decisions >= 50
    else:
        assert found.certainty["UNDECIDABLE"].decisions == found.all.decisions


def test_forks_end_in_every_way():
    """Every way in which find_idlest_cpu ends on some CPU."""
    paths: dict[str, int] = {}
    for path in TRACES:
        if path.stem.endswith("-forks"):
            for name, share in validate(Trace.open(path)).forks.path.items():
                paths[name] = paths.get(name, 0) + share.decisions
    assert min(paths[p] for p in ("STAYS", "IDLEST_ONLY", "IDLEST_SCHED_IDLE", "IDLEST_IDLE", "IDLEST_LOAD")) > 0


def test_it_reports(trace):
    report = build_report(trace, load_replay=df_replay).to_json()
    assert len(report["odd"]) == 3
    assert report["wakeups"] == trace.rows("wakeups")
