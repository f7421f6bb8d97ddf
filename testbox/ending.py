# SPDX-License-Identifier: GPL-2.0-only
"""How a box ended, and what that means for its caller."""

from __future__ import annotations

import re
import time

from ..errors import WakescopeError
from .guest import Box
from .initrd import BoxSetupError

_CONSOLE_KEPT = 1 << 20  # bytes of the console's end that are kept


class GuestDiedError(WakescopeError):
    """The guest ended without saying how its command did: a panic, an oops, or a fault of the emulator."""

    exit_code = 125


class BoxTimeoutError(WakescopeError):
    """The box was still running when its time was up."""

    exit_code = 124


class Ending:
    """What the status port, the console and the emulator of a box said, from its start to its end."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.ready_seconds: float | None = None  # until the guest was about to start the command
        self.timed_out = False
        self.status = bytearray()
        self.console = bytearray()
        self.emulator = bytearray()

    def hear_status(self, data: bytes) -> None:
        """Take what the status port says: lines "ready", "exit N" and "error TEXT"."""
        self.status += data
        if self.ready_seconds is None and b"ready\n" in self.status:
            self.ready_seconds = time.monotonic() - self.started

    def hear_console(self, data: bytes) -> None:
        """Take what the console says, keeping its end."""
        self.console += data
        del self.console[:-_CONSOLE_KEPT]

    @property
    def code(self) -> int | None:
        """The command's exit status, once it has ended."""
        match = re.search(rb"^exit (\d+)$", self.status, re.MULTILINE)
        return int(match[1]) if match else None

    @property
    def refusal(self) -> str:
        """Why the guest could not be set up as asked; empty if it could."""
        match = re.search(rb"^error (.*)$", self.status, re.MULTILINE)
        return match[1].decode(errors="replace") if match else ""

    def console_end(self, lines: int = 50) -> str:
        """The last lines of the console."""
        return "\n".join(self.console.decode(errors="replace").replace("\r", "").splitlines()[-lines:])

    def verdict(self, box: Box) -> int:
        """The command's exit status, or an exception that says why there is none.

        Raises BoxTimeoutError, GuestDiedError, or BoxSetupError if the guest refused a setting or there was no guest.
        """
        if self.code is not None:
            return self.code
        if self.refusal:
            raise BoxSetupError(self.refusal)
        if self.timed_out:
            state = "was still running" if b"ready\n" in self.status else "had not started its command"
            raise BoxTimeoutError(f"the box {state} after {box.timeout:g} s and was ended; give it more with --timeout")
        if not self.console and self.emulator:
            raise BoxSetupError(f"QEMU: {self.emulator.decode(errors='replace').strip().splitlines()[-1]}")
        panic = re.search(rb"Kernel panic - not syncing: ([^\r\n]*)", self.console)
        reason = f"panicked: {panic[1].decode(errors='replace')}" if panic else "stopped without an exit status"
        raise GuestDiedError(f"the guest's kernel {box.kernel.release} {reason}")
