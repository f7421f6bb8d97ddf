# SPDX-License-Identifier: GPL-2.0-only
"""Several recordings in one boot: what the corpus and the fidelity table are made of.

    python -m wakescope.testbox.campaign corpus FOLDER [KERNEL-TOPOLOGY…]    tests/corpus, or part of it, again
    python -m wakescope.testbox.campaign threads FOLDER [KERNEL-TOPOLOGY…]   its traces that docs/variants.md is about
    python -m wakescope.testbox.campaign fidelity FOLDER [KERNEL-TOPOLOGY…]  the traces behind docs/fidelity.md
    python -m wakescope.testbox.campaign forks FOLDER [KERNEL-TOPOLOGY…]     those of its table of forks and execs

A load is NAME:N@SECONDS; each becomes one trace, and one that fails is reported and does not end the others. What is
there already is not made again, so an interrupted campaign goes on where it was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError, WakescopeError
from ..schema import Outcome
from ..trace import Trace
from ..tracers import host
from ..tracers.offsets import Types, kernel_types
from ..tracers.probes import Probes, plan
from ..tracers.recorder import record
from .loads import LOADS

KERNELS = ("5.10", "6.1", "6.12", "7.3")
TIMEOUT = 1500  # seconds of one boot


@dataclass(frozen=True)
class Campaign:
    """Machines, what is recorded on each as (tier, loads) in order, and what a trace must be to be kept.

    largest is the size in bytes no trace may pass (0: any), fewest the decisions it must hold.
    """

    topologies: tuple[str, ...]
    runs: tuple[tuple[str, tuple[str, ...]], ...]
    largest: int = 0
    fewest: int = 0


CAMPAIGNS = {
    "corpus": Campaign(
        ("2s2c2t", "1s8c1t", "uneven"),
        (("decision", ("tbench:4@4", "hackbench:1@3", "pgbench:4@4", "numa:2@4", "forks:2@4")),),
        600_000,
    ),
    # the machine of the 2015 thread (docs/variants.md): pgbench at the client count its figures are about
    "threads": Campaign(("1s4c2t",), (("decision", ("pgbench:8@8", "tbench:4@4")),), 600_000),
    # tier deep holds all of tier decision, and the corpus is of tier decision
    "fidelity": Campaign(
        ("2s2c2t", "1s8c1t", "uneven", "llcs"),
        (("deep", ("tbench:4@15", "hackbench:2@12", "pgbench:4@35", "juggle:4@15", "mixed:2@10")),),
        fewest=20_000,
    ),
    "forks": Campaign(("2s2c2t", "1s8c1t", "uneven", "snc"), (("deep", ("forks:3@60",)),)),
}


def boot(campaign: str, kernel: str, topology: str, out: Path) -> int:
    """Record a campaign's loads in one box, as OUT/KERNEL-TOPOLOGY-TIER-LOAD.wake; returns the box's exit status."""
    out.mkdir(parents=True, exist_ok=True)
    box = [sys.executable, "-m", "wakescope", "box", "run", "--kernel", kernel, "--topology", topology]
    box += ["--sysctl", "kernel.sched_schedstats=1", "--timeout", str(TIMEOUT), "--out", str(out)]
    inside = [sys.executable, "-m", "wakescope.testbox.campaign", "inside", campaign, f"{kernel}-{topology}", "/out"]
    return subprocess.run([*box, "--", *inside]).returncode


def inside(campaign: str, prefix: str, folder: Path) -> int:
    """Record each load here, in the box; returns how many failed."""
    failed = 0
    types = kernel_types()
    for tier, loads in CAMPAIGNS[campaign].runs:
        for spec in loads:
            name, count, seconds = parse(spec)
            if name == "numa" and host.read("/sys/devices/system/node/online") == "0":
                continue
            path = folder / f"{prefix}-{tier}-{name}.wake"
            try:
                while not path.exists():
                    _record(types, tier, path, name, count, seconds)
                    seconds = _refit(path, seconds, CAMPAIGNS[campaign])
            except WakescopeError as error:
                print(f"{path.name}: {error}", flush=True)
                failed += 1
    return failed


def _record(types: Types, tier: str, path: Path, name: str, count: int, seconds: float) -> None:
    """Record in the guest's own memory, then move the trace out: the shared folder is slow."""
    with tempfile.TemporaryDirectory() as memory:
        spool = Path(memory) / path.name
        with LOADS[name](count, seconds) as load, Probes(plan(types, tier)) as probes:
            status = record(probes, spool, load.command, None if load.ends else seconds)
        shutil.copytree(spool, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)  # whole, or not there
    print(f"{path.name}: exit status {status}", flush=True)


def _refit(path: Path, seconds: float, campaign: Campaign) -> float:
    """Remove a trace that is too large or too short, to be made again over these seconds."""
    size = sum(file.stat().st_size for file in path.iterdir())
    trace = Trace.open(path)
    wakeups = trace.df("wakeups", ["ts", "ts_exit", "outcome"])
    inside = (wakeups["ts"] >= trace.meta["attached_ts"]) & (wakeups["ts_exit"] <= trace.meta["detach_ts"])
    placed = int((inside & (wakeups["outcome"] == Outcome.PLACED)).sum())
    if campaign.largest and size > campaign.largest:
        seconds *= 0.8 * campaign.largest / size
    elif placed < campaign.fewest:
        seconds *= max(1.2, 1.2 * campaign.fewest / max(placed, 1))
    else:
        return seconds
    shutil.rmtree(path)
    return seconds


def parse(spec: str) -> tuple[str, int, float]:
    """Name, count and seconds of NAME:N@SECONDS. Raises UsageError."""
    what, _, seconds = spec.partition("@")
    name, _, count = what.partition(":")
    numbers = spec.isascii() and count.isdigit() and seconds.replace(".", "", 1).isdigit()
    if name not in LOADS or not numbers:
        raise UsageError(f"{spec}: expected NAME:N@SECONDS with a NAME of {', '.join(LOADS)}")
    return name, int(count), float(seconds)


def main(arguments: list[str]) -> int:
    """The command line; returns how many boots or loads failed."""
    campaign, *rest = arguments
    if campaign == "inside":
        return inside(rest[0], rest[1], Path(rest[2]))
    folder, *chosen = rest
    machines = [(k, t) for k in KERNELS for t in CAMPAIGNS[campaign].topologies if not chosen or f"{k}-{t}" in chosen]
    return sum(boot(campaign, kernel, topology, Path(folder)) != 0 for kernel, topology in machines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
