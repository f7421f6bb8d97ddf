# SPDX-License-Identifier: GPL-2.0-only
"""Real workloads by name: tbench with its server, pgbench on a throw-away cluster, hackbench.

Each is prepared before recording begins and cleaned up after it, so that a trace holds the load and not its setup.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CommandError, UsageError

TBENCH_PORT = 7003  # fixed in tbench and tbench_srv
TBENCH_LOADS = (Path("/usr/share/dbench/client.txt"), Path("/usr/local/share/client.txt"))
START_TIMEOUT = 60.0  # seconds a server gets to answer; emulated machines are slow
MOST = 4096  # clients or groups: more is a slip of the hand, and would take the machine down
HACKBENCH_LOOPS = 1_000_000_000  # more than any recording lasts: the recorder ends it


@dataclass
class Load:
    """A workload ready to run: its command line, and whether it ends by itself after the seconds asked for."""

    command: list[str]
    ends: bool = True


def workload(spec: str, seconds: float) -> AbstractContextManager[Load]:
    """A workload such as tbench:4, its servers running inside the context.

    spec: tbench:N, pgbench:N or hackbench:N, N clients or groups. Raises UsageError for another spec, CommandError if
    a program is missing or a server does not start.
    """
    name, _, count = spec.partition(":")
    number = int(count) if count.isascii() and count.isdigit() else 0
    if name not in WORKLOADS or not 1 <= number <= MOST:
        raise UsageError(f"--workload {spec}: expected {', '.join(f'{w}:N' for w in WORKLOADS)} with N of 1 to {MOST}")
    return WORKLOADS[name](number, seconds)


@contextmanager
def tbench(clients: int, seconds: float) -> Iterator[Load]:
    """tbench with N clients against a server of its own."""
    client, server = _program("tbench", "dbench"), _program("tbench_srv", "dbench")
    load = next((path for path in TBENCH_LOADS if path.exists()), None)
    if load is None:
        raise CommandError("tbench has no load file (client.txt): install the package dbench")
    if _answers(("127.0.0.1", TBENCH_PORT)):
        raise CommandError(f"port {TBENCH_PORT}, which tbench uses, is taken: end the server that listens there")
    with _server([server], lambda: _answers(("127.0.0.1", TBENCH_PORT)), signal.SIGTERM):
        yield Load([client, "-c", str(load), "-t", str(max(1, round(seconds))), str(clients), "127.0.0.1"])


@contextmanager
def hackbench(groups: int, seconds: float) -> Iterator[Load]:
    """hackbench with N groups of 20 senders and 20 receivers, until the recording ends."""
    yield Load([_program("hackbench", "rt-tests"), "-g", str(groups), "-l", str(HACKBENCH_LOOPS)], ends=False)


@contextmanager
def pgbench(clients: int, seconds: float) -> Iterator[Load]:
    """pgbench -S -j 1 with N clients on a PostgreSQL cluster made for it in memory where there is room."""
    programs = {name: _postgres(name) for name in ("initdb", "postgres", "pgbench")}
    user = _unprivileged()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="wakescope-pg-", dir=place) as folder:
        data = Path(folder) / "data"
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        _run([programs["initdb"], "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"], user)
        server = [programs["postgres"], "-D", str(data), "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        place_of = ["-h", folder, "-U", "postgres"]
        probe = [*_psql(), *place_of, "-c", "select 1", "postgres"]
        # SIGINT is PostgreSQL's fast shutdown
        with _server(server, lambda: _succeeds(probe), signal.SIGINT, user):
            _run([programs["pgbench"], *place_of, "-i", "-q", "-s", str(max(1, clients)), "postgres"], None)
            length = str(max(1, round(seconds)))
            load = [programs["pgbench"], *place_of, "-S", "-j", "1", "-c", str(clients), "-T", length, "-n", "postgres"]
            yield Load(load)


WORKLOADS: dict[str, Callable[[int, float], AbstractContextManager[Load]]] = {
    "tbench": tbench,
    "pgbench": pgbench,
    "hackbench": hackbench,
}


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        raise CommandError(f"{name} is not installed: install the package {package}")
    return found


def _postgres(name: str) -> str:
    """Debian keeps the server's programs out of PATH, one folder per version; the newest is taken."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    for folder in folders:
        if (folder / name).exists():
            return str(folder / name)
    return _program(name, "postgresql")


def _psql() -> list[str]:
    return [_postgres("psql"), "-q", "-t"]


def _unprivileged() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: the user it then runs as."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise CommandError("pgbench needs an unprivileged user (postgres or nobody), and there is none")


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def _run(command: list[str], user: pwd.struct_passwd | None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **_as(user))
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise CommandError(f"{Path(command[0]).name} failed: {''.join(last) or f'exit status {done.returncode}'}")


def _answers(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(address) == 0


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, cwd="/").returncode == 0


@contextmanager
def _server(
    command: list[str], ready: Callable[[], bool], end: signal.Signals, user: pwd.struct_passwd | None = None
) -> Iterator[None]:
    """A server that runs while the context does, out of reach of the terminal's Ctrl-C."""
    null = subprocess.DEVNULL
    server = subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True, **_as(user)
    )
    name = Path(command[0]).name
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not ready():
            if server.poll() is not None:
                raise CommandError(f"{name} ended at once with status {server.returncode}")
            if time.monotonic() > deadline:
                raise CommandError(f"{name} did not answer within {START_TIMEOUT:.0f} s")
            time.sleep(0.05)
        yield
    finally:
        if server.poll() is None:
            server.send_signal(end)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
