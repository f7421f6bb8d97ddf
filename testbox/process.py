# SPDX-License-Identifier: GPL-2.0-only
"""The emulator as a child process: its pipes, its time limit, and its sure end."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from .ending import Ending
from .initrd import BoxSetupError

_LOOK_SECONDS = 60.0  # how long to wait at most before looking at the clock: a box may have no time limit
_POWER_OFF_SECONDS = 20  # time to switch off after the command ended

Sink = Callable[[bytes], object]


def program(name: str, package: str) -> str:
    """Path of a program on the host; BoxSetupError names the package to install."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise BoxSetupError(f"{name} is not on this host: install {package}")
    return found


def _path() -> str:
    """PATH, then where virtme-ng may be in a virtual environment nobody activated, and where users have no PATH to."""
    return f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}:/usr/sbin:/sbin"


@contextmanager
def pipes(names: list[str]) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Reading and writing ends of a pipe for each name, closed at the end unless taken out of the dictionaries."""
    readers: dict[str, int] = {}
    writers: dict[str, int] = {}
    try:
        for name in names:
            readers[name], writers[name] = os.pipe()
        yield readers, writers
    finally:
        for number in (*readers.values(), *writers.values()):
            os.close(number)


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """A descriptor of a file that has no name and ends with this process."""
    number = os.memfd_create("box")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(content)
        yield number
    finally:
        os.close(number)


@contextmanager
def running(
    line: list[str], descriptors: list[int], stdin: int | None, stdout: int | None, stderr: int
) -> Iterator[None]:
    """A process that runs as long as the context: killed at its end with all it started, whatever ends it.

    A session of its own keeps the terminal's Ctrl-C from it, so that it is ended here, in order; if this process is
    killed outright, the kernel kills the child (setpriv of util-linux 2.33 or later asks for that).
    """
    with _signals_raise():
        process = subprocess.Popen(
            [program("setpriv", "util-linux"), "--pdeathsig", "KILL", *line],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=descriptors,
            start_new_session=True,
            env={**os.environ, "PATH": _path()},
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pump(sources: dict[int, Sink], ending: Ending, timeout: float) -> None:
    """Hand what arrives on each descriptor to its sink, until all are at their end or time is up."""
    deadline = ending.started + timeout
    with selectors.DefaultSelector() as selector:
        for number, sink in sources.items():
            selector.register(number, selectors.EVENT_READ, sink)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, min(deadline - time.monotonic(), _LOOK_SECONDS))):
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fd)
            if ending.code is not None or ending.refusal:
                deadline = min(deadline, time.monotonic() + _POWER_OFF_SECONDS)
            if time.monotonic() >= deadline:
                ending.timed_out = True
                return


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, by an exception, so that the box is ended first."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
