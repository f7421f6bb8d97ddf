# SPDX-License-Identifier: GPL-2.0-only
"""The whole of Wakescope on stock kernels: recorded in the box, validated here."""

import subprocess
import sys

import pytest
from wakescope.errors import WakescopeError
from wakescope.model.kernels import policy_for
from wakescope.model.validate import validate
from wakescope.schema import Outcome
from wakescope.testbox.kernels import find
from wakescope.trace import Trace

WAKESCOPE = [sys.executable, "-m", "wakescope"]
RUNS = [
    ("5.10", "2s2c2t", "deep"),
    ("5.15", "1s8c1t", "deep"),
    ("6.1", "uneven", "deep"),
    ("6.12", "llcs", "decision"),
    ("7.3", "2s2c2t", "deep"),
]

pytestmark = pytest.mark.box


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def recorded(request, tmp_path_factory):
    """hackbench recorded on a stock kernel."""
    kernel, topology, tier = request.param
    return in_box(tmp_path_factory.mktemp("box"), kernel, topology, tier, "hackbench -g 1 -l 150"), tier


def in_box(out, kernel, topology, tier, load):
    """A trace of a shell script recorded on a stock kernel, with the kernel's own wake_affine counters on."""
    try:
        find(kernel, lambda _: None)
    except WakescopeError as error:
        pytest.skip(str(error))
    box = [*WAKESCOPE, "box", "run", "--kernel", kernel, "--topology", topology, "--out", out]
    box += ["--sysctl", "kernel.sched_schedstats=1", "--timeout", "400"]
    script = 'spool=$(mktemp -d)/a.wake; "$@" -o "$spool" -- sh -c "$0" && cp -r "$spool" /out/'
    run = ["sh", "-c", script, load, *WAKESCOPE, "record", "--tier", tier]
    done = subprocess.run([*map(str, box), "--", *run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Trace.open(out / "a.wake")


@pytest.fixture(scope="module")
def validation(recorded):
    return validate(recorded[0])


def test_the_tier_asked_for_is_reached_and_nothing_is_lost(recorded):
    trace, tier = recorded
    assert trace.meta["tier"] == tier
    assert trace.meta["not_stock"] == []
    assert sum(ring["lost"] for ring in trace.meta["rings"]) == 0
    outcomes = trace.df("wakeups", ["outcome"])["outcome"]
    reached = outcomes.isin([Outcome.PLACED, Outcome.FORK, Outcome.EXEC]).sum()
    # entries seen before a wakeup's own start, or after its probes were gone, are not records
    assert 0 <= trace.meta["counters"]["decisions"] - reached <= 20


def test_the_model_agrees_with_the_kernel(validation):
    assert validation.all.decisions > 500
    exact = validation.certainty["EXACT"]
    assert exact.agree >= 0.999 * exact.decisions
    assert validation.all.agree >= 0.98 * validation.all.decisions
    assert validation.certainty["UNDECIDABLE"].decisions <= 0.01 * validation.all.decisions


def test_flips_are_the_kernels(validation):
    assert validation.flips.matched > 500
    assert validation.flips.unchanged == 0
    assert validation.flips.unexplained == 0


def test_wake_affine_is_what_schedstats_counted(validation):
    for share in validation.affine.values():
        assert share.decisions > 500
        assert share.agree == share.decisions


def test_the_kernel_asked_what_the_model_asks(recorded, validation):
    trace, tier = recorded
    if tier != "deep":
        return
    if trace.meta["kernel"].startswith("7."):
        assert "available_idle_cpu" in trace.meta["refused"]["available_idle"]
    assert validation.order.decisions > 500
    assert validation.order.agree >= 0.9999 * validation.order.decisions


RESTRICTED = """
for cpus in 0-4 0,5 2-5 0-3,6; do
    taskset -c $cpus sh -c 'for i in $(seq 40); do sh -c "sh -c :"; done' &
done
stress-ng --cpu 3 -t 10 -q &
wait
"""


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "group_allowed"), [("6.5", 0), ("6.12", 1)])
def test_forks_of_tasks_that_may_not_run_everywhere(tmp_path, kernel, group_allowed):
    """find_idlest_group by the rule that this kernel has, on either side of 82d6e01a0699; the other one is wrong."""
    trace = in_box(tmp_path, kernel, "2s2c2t", "decision", RESTRICTED)
    policy = policy_for(trace.meta).policy
    assert policy.group_allowed == group_allowed
    own, other = (
        validate(trace, policy | {"group_allowed": rule}).forks.certainty["EXACT"]
        for rule in (group_allowed, 1 - group_allowed)
    )
    assert own.agree == own.decisions > 500
    assert other.agree < 0.95 * other.decisions
