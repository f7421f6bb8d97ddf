# SPDX-License-Identifier: GPL-2.0-only
"""The recorded command: started where its caller is, and ended with everything it started.

It stays in the recorder's session and process group, so that the terminal, Ctrl-C and Ctrl-Z are as without a
recorder. What it started may leave that group (setsid) and outlive its parent; to know them all the same, the recorder
becomes the parent of its orphans (PR_SET_CHILD_SUBREAPER, prctl(2), Linux 3.4).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import CommandError

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
_PAUSE = 0.05  # seconds between two looks at what is left

GRACE = 5.0  # seconds a command gets to end after SIGTERM


class Command:
    """A command that runs, and what stems from it."""

    def __init__(self, line: list[str]) -> None:
        """Start it. Raises CommandError if it cannot be."""
        self._not_its = {pid for pid, (parent, _) in _processes().items() if parent == os.getpid()}
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._process = subprocess.Popen(line)
        except FileNotFoundError:
            raise CommandError(f"{line[0]}: no such command; nothing was recorded") from None
        except OSError as error:
            raise CommandError(f"{line[0]} cannot be started: {error.strerror}; nothing was recorded") from None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self) -> int:
        """Wait for its end; its exit status, or -n if signal n ended it."""
        return self._process.wait()

    def end(self, meanwhile: Callable[[], object]) -> None:
        """Ask it and all that stems from it to end, then make them; meanwhile is called until they have.

        A command that has ended by itself may have left something running on purpose (a server): that is let be.
        """
        if self._process.poll() is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + GRACE
            told: set[int] = set()
            while (left := self._left()) and time.monotonic() < deadline:
                for pid in left - told:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
                told |= left
                meanwhile()
                time.sleep(_PAUSE)
        self._process.wait()

    def _left(self) -> set[int]:
        """Its processes that have not ended; orphans that have are waited for, being the recorder's children now."""
        self._process.poll()
        processes = _processes()
        found: set[int] = set()
        next_ones = {pid for pid, (parent, _) in processes.items() if parent == os.getpid()} - self._not_its
        for orphan in {pid for pid in next_ones if processes[pid][1] == "Z"} - {self.pid}:
            with suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
        while next_ones:
            found |= next_ones
            next_ones = {pid for pid, (parent, _) in processes.items() if parent in next_ones}
        return {pid for pid in found if processes[pid][1] not in "ZX"}


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and state letter of every process, from /proc/*/stat (proc(5))."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end while we look
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            processes[int(path.parent.name)] = (int(parent), state)
    return processes
