# SPDX-License-Identifier: GPL-2.0-only
"""`make bench`: what Wakescope costs on this machine, measured, as docs/benchmarks.md's first section.

Everything compared is run in interleaved rounds; medians and ranges of ratios are given, for the timings of a shared
machine are noisy.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..benchmarks import middle, publish
from ..model.kernels import kernel
from ..model.replay import replay
from ..trace import Trace
from . import host, libbpf

WAKESCOPE = [sys.executable, "-m", "wakescope"]
PERF = host.perf() or "perf"
PIPE = ["taskset", "-c", "0", PERF, "bench", "sched", "pipe", "-l", "300000"]
HACKBENCH = ["hackbench", "-g", "2", "-l", "10000"]
ROUNDS = 7


def main() -> None:
    """Measure, and put it into the document named on the command line."""
    with tempfile.TemporaryDirectory(prefix="wakescope-bench-") as name:
        publish(Path(sys.argv[1]), "Recording and replay", _rows(Path(name)))


def _rows(folder: Path) -> Iterator[tuple[str, str]]:
    yield from _probes(folder)
    yield from _slow_down(folder)
    yield from _memory(folder)
    yield _replay(folder)


def _record(path: Path, command: list[str]) -> Trace:
    shutil.rmtree(path, ignore_errors=True)
    subprocess.run([*WAKESCOPE, "record", "-o", path, "--", *command], check=True, capture_output=True)
    return Trace.open(path)


def _probes(folder: Path) -> Iterator[tuple[str, str]]:
    """Cost per run of each program from the kernel's own BPF statistics, and CPU of the recorder per record."""
    runs: dict[str, list[float]] = {}
    cpu: list[float] = []
    for _ in range(ROUNDS):
        stats = libbpf.lib().bpf_enable_stats(libbpf.STATS_RUN_TIME)
        if stats < 0:
            raise libbpf.fail("switch on BPF statistics", stats)
        with open(stats, "rb"):
            trace = _record(folder / "probes.wake", HACKBENCH)
        for program, (count, total) in trace.meta["run_time"].items():
            if count > 1000:
                runs.setdefault(program, []).append(total / count)
        cpu.append(trace.meta["recorder_cpu_s"] / sum(trace.meta["rows"].values()) * 1e6)
    for program, costs in runs.items():
        yield f"probe {program}, ns a run (hackbench)", middle(costs, ".0f")
    yield "recorder CPU a record, µs", middle(cpu, ".2f")


def _slow_down(folder: Path) -> Iterator[tuple[str, str]]:
    """perf bench sched pipe on one CPU: alone, under wakescope record, under perf sched record."""
    ratios: dict[str, list[float]] = {"wakescope record": [], "perf sched record": []}
    for _ in range(ROUNDS):
        alone = _seconds(PIPE)
        shutil.rmtree(folder / "pipe.wake", ignore_errors=True)
        ours = _seconds([*WAKESCOPE, "record", "-o", str(folder / "pipe.wake"), "--", *PIPE])
        perf = _seconds([PERF, "sched", "record", "-q", "-o", str(folder / "perf.data"), "--", *PIPE])
        ratios["wakescope record"].append(ours / alone)
        ratios["perf sched record"].append(perf / alone)
    for name, values in ratios.items():
        yield f"pinned perf bench sched pipe under {name}, times its time alone", middle(values, ".2f")
    pairs = [(a - 1) / (b - 1) for a, b in zip(*ratios.values(), strict=True)]
    yield "slow-down of wakescope record over that of perf sched record", middle(pairs, ".2f")
    size = sum(f.stat().st_size for f in (folder / "pipe.wake").rglob("*") if f.is_file())
    share = size / (folder / "perf.data").stat().st_size
    yield "bytes on disk of that recording, wakescope over perf", f"{share:.3f}"


def _seconds(command: list[str]) -> float:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Total time: ([\d.]+)", done.stdout)
    if not found:
        raise SystemExit(f"no time in the output of {' '.join(command)}")
    return float(found[1])


def _memory(folder: Path) -> Iterator[tuple[str, str]]:
    """Resident memory of the recorder early and late in a recording."""
    path = folder / "memory.wake"
    process = subprocess.Popen(
        [*WAKESCOPE, "record", "-o", path, "--duration", "21", "--workload", "hackbench:1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    samples = []
    while process.poll() is None:
        time.sleep(1)
        text = host.read(f"/proc/{process.pid}/status") or ""
        found = re.search(r"VmRSS:\s+(\d+)", text)
        if found and (path / "raw").exists():
            samples.append(int(found[1]) / 1024)
    early, late = samples[3], samples[len(samples) - 4]
    yield "resident memory of the recorder after 4 s, and near the end of 21 s, MiB", f"{early:.0f}, {late:.0f}"


def _replay(folder: Path) -> tuple[str, str]:
    trace = _record(folder / "replay.wake", HACKBENCH)
    wakeups = trace.array("wakeups")
    policy = kernel("6.12")
    replay(wakeups[:100], trace.topology, policy, 250)
    rates = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        replay(wakeups, trace.topology, policy, 250)
        rates.append(len(wakeups) / (time.perf_counter() - begin) / 1e6)
    return "replay after compilation, million decisions a second on one core", middle(rates, ".2f")


if __name__ == "__main__":
    main()
