# SPDX-License-Identifier: GPL-2.0-only
"""The loads recorded in boxes: the recorder's own workloads, and four that reach what those do not.

juggle moves its tasks' affinity about; mixed runs several kinds of task at once, SCHED_IDLE ones among them; numa makes
automatic NUMA balancing move tasks; forks places new tasks on machines from idle to overloaded. Run as a module, this
is the program of juggle, mixed and forks.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ..errors import CommandError
from ..tracers import host
from ..tracers.workloads import WORKLOADS, Load, workload

PERIOD = 0.002  # seconds between two changes of affinity
FORKING = "while :; do /bin/true; /bin/true & /bin/true; ( : ); wait; done"  # fork and exec, two at once, fork alone


@contextmanager
def juggle(pairs: int, seconds: float) -> Iterator[Load]:
    """N pairs of tasks that wake each other through pipes, while their affinity changes every two milliseconds."""
    yield Load([sys.executable, "-m", __name__, "juggle", str(pairs), str(seconds)])


@contextmanager
def mixed(clients: int, seconds: float) -> Iterator[Load]:
    """tbench with N clients, one group of hackbench, and as many SCHED_IDLE hogs as clients.

    All of it ends with the command, so that nothing competes with what follows the recording.
    """
    with workload(f"tbench:{clients}", seconds) as tbench, workload("hackbench:1", seconds) as hackbench:
        hogs = [_program("chrt"), "--idle", "0", _program("stress-ng"), "--quiet", "--cpu", str(clients)]
        beside = [sys.executable, "-m", __name__, "beside"]
        yield Load([*beside, *hogs, "--", *hackbench.command, "--", *tbench.command], ends=False)


@contextmanager
def numa(processes: int, seconds: float) -> Iterator[Load]:
    """perf bench numa mem: N processes of two threads that share memory which balancing must bring together."""
    shape = ["-p", str(processes), "-t", "2", "-P", "64", "-s", str(round(seconds))]
    yield Load([host.perf() or _program("perf"), "bench", "numa", "mem", *shape, "-q"])


@contextmanager
def forks(shells: int, seconds: float) -> Iterator[Load]:
    """N shells that fork and exec, N tasks that fork and N that start threads, beside ever more hogs."""
    yield Load([sys.executable, "-m", __name__, "forks", str(shells), str(seconds)])


LOADS: dict[str, Callable[[int, float], AbstractContextManager[Load]]] = {
    **WORKLOADS,
    "juggle": juggle,
    "mixed": mixed,
    "numa": numa,
    "forks": forks,
}


def _program(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise CommandError(f"{name} is not installed")
    return found


def beside(commands: list[list[str]]) -> int:
    """Run the last command with the others beside it, and end those with it or on SIGTERM; returns its exit status."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    null = subprocess.DEVNULL
    others = [
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
        for command in commands[:-1]
    ]
    try:
        with subprocess.Popen(commands[-1]) as last:
            return last.wait()
    finally:
        for other in others:
            os.killpg(other.pid, signal.SIGKILL)
            other.wait()


def split(words: list[str]) -> list[list[str]]:
    """Commands parted by --."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def _echo(pairs: int) -> list[int]:
    """Fork pairs of tasks that hand a byte to and fro; returns their pids."""
    pids = []
    for _ in range(pairs):
        ping, pong = os.pipe(), os.pipe()
        for read, write, first in ((ping[0], pong[1], True), (pong[0], ping[1], False)):
            pid = os.fork()
            if pid == 0:
                if first:
                    os.write(write, b"!")
                while True:
                    os.write(write, os.read(read, 1))
            pids.append(pid)
    return pids


def juggled(pairs: int, seconds: float) -> None:
    """Fork the pairs, change one task's affinity after the other, end them all."""
    cpus = sorted(os.sched_getaffinity(0))
    choose = random.Random(1)
    pids = _echo(pairs)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            allowed = choose.sample(cpus, choose.randint(1, len(cpus)))
            os.sched_setaffinity(choose.choice(pids), allowed)
            time.sleep(PERIOD)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _hog(policy: int, nice: int) -> int:
    """Fork a task that runs for ever; returns its pid."""
    pid = os.fork()
    if pid == 0:
        os.nice(nice)
        os.sched_setscheduler(0, policy, os.sched_param(0))
        while True:
            pass
    return pid


def forked(shells: int, seconds: float) -> None:
    """Run the shells, every other one on every other CPU only, and as many workers that fork and that start threads,
    with more hogs in each fifth of the time.

    The first hog is a SCHED_IDLE one, which leaves its CPU free for others to take; every other one is nice.
    """
    cpus = sorted(os.sched_getaffinity(0))
    quick = [_program("stress-ng"), "--quiet", "--fork", str(shells), "--pthread", str(shells), "--pthread-max", "3"]
    commands = [["/bin/sh", "-c", FORKING]] * shells + [quick]
    null = subprocess.DEVNULL
    running = [subprocess.Popen(c, stdout=null, stderr=null, start_new_session=True) for c in commands]
    for shell in running[1:-1:2]:
        os.sched_setaffinity(shell.pid, cpus[::2])
    hogs: list[int] = []
    try:
        for wanted in (0, 1, len(cpus) // 2, len(cpus), 2 * len(cpus)):
            while len(hogs) < wanted:
                hogs.append(_hog(os.SCHED_OTHER if hogs else os.SCHED_IDLE, len(hogs) % 2 * 10))
            time.sleep(seconds / 5)
    finally:
        for pid in hogs:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "beside":
        sys.exit(beside(split(words)))
    run = {"juggle": juggled, "forks": forked}[what]
    run(int(words[0]), float(words[1]))
