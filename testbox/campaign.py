# SPDX-License-Identifier: GPL-2.0-only
"""Several recordings in one boot: what the corpus and the fidelity table are made of.

`python -m wakescope.testbox.campaign inside FOLDER LOAD…` runs in the guest. A load is NAME:N@SECONDS; each becomes
FOLDER/TIER-NAME.wake, and one that fails is reported and does not end the others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..errors import UsageError, WakescopeError
from ..tracers.btf import Btf
from ..tracers.probes import Probes, plan
from ..tracers.recorder import record
from .loads import LOADS


def boot(kernel: str, topology: list[str], loads: list[str], out: Path, tier: str, sysctls: list[str]) -> int:
    """Record the loads in one box, traces under out; returns the box's exit status, the number of loads that failed.

    topology: options of `wakescope box run` that give the machine, such as ["--topology", "2s2c2t"].
    """
    out.mkdir(parents=True, exist_ok=True)
    box = [sys.executable, "-m", "wakescope", "box", "run", "--kernel", kernel, *topology, "--out", str(out)]
    box += [word for s in sysctls for word in ("--sysctl", s)]
    inside = [sys.executable, "-m", __name__, "inside", tier, "/out", *loads]
    return subprocess.run([*box, "--", *inside]).returncode


def inside(tier: str, folder: Path, loads: list[str]) -> int:
    """Record each load here; returns how many failed."""
    failed = 0
    btf = Btf.kernel()
    for spec in loads:
        name, count, seconds = _parse(spec)
        path = folder / f"{tier}-{name}.wake"
        try:
            with LOADS[name](count, seconds) as load, Probes(plan(btf, tier)) as probes:
                status = record(probes, path, load.command, None if load.ends else seconds)
            print(f"{path.name}: exit status {status}", flush=True)
        except WakescopeError as error:
            print(f"{path.name}: {error}", flush=True)
            failed += 1
    return failed


def _parse(spec: str) -> tuple[str, int, float]:
    what, _, seconds = spec.partition("@")
    name, _, count = what.partition(":")
    if name not in LOADS or not count.isdigit():
        raise UsageError(f"{spec}: expected NAME:N@SECONDS with a NAME of {', '.join(LOADS)}")
    return name, int(count), float(seconds)


if __name__ == "__main__":
    _, _, tier, folder, *loads = sys.argv
    sys.exit(inside(tier, Path(folder), loads))
