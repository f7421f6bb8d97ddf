# SPDX-License-Identifier: GPL-2.0-only
"""Boot a box in QEMU, stream what its command says, and say how it ended.

Nothing is written on the host but the folder shared as /out: the initramfs is handed over in memory, and console,
output and status come back through pipes.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from ..errors import WakescopeError
from . import initrd
from .guest import Box, command_script, kernel_command_line, settings_script
from .initrd import BoxSetupError
from .topology import qemu_arguments

_CONSOLE_KEPT = 1 << 20  # bytes of the console's end that are kept
_LOOK_SECONDS = 60.0  # how long to wait at most before looking at the clock: a box may have no time limit
_POWER_OFF_SECONDS = 20  # time to switch off after the command ended

# Emulation runs one thread: with one per CPU (thread=multi) guests are corrupted when the kernel patches its own code,
# as attaching a probe does. -cpu max is an AMD to the guest, and QEMU does not emulate AMD's TOPOEXT: as an Intel it
# shows SMT siblings, and a stable TSC.
ACCELERATORS = {
    "tcg": ["-accel", "tcg,thread=single", "-cpu", "max,vendor=GenuineIntel"],
    "kvm": ["-accel", "kvm", "-cpu", "host,host-cache-info=off,l3-cache=on"],
}


class GuestDiedError(WakescopeError):
    """The guest ended without saying how its command did: a panic, an oops, or a fault of the emulator."""

    exit_code = 125


class BoxTimeoutError(WakescopeError):
    """The box was still running when its time was up."""

    exit_code = 124


class Ending:
    """How a box ended: what its status port, its console and the emulator said."""

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


def arguments(box: Box, accelerator: str, files: dict[str, str]) -> list[str]:
    """QEMU's command line; files says where initrd, console, stdout, stderr and status are."""
    line = [_program(), "-machine", "q35", *ACCELERATORS[accelerator], *qemu_arguments(box.shape, box.memory)]
    line += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    line += ["-kernel", str(box.kernel.image), "-initrd", files["initrd"], "-append", kernel_command_line(box)]
    line += ["-chardev", f"file,id=console,path={files['console']}", "-serial", "chardev:console"]
    line += ["-device", "virtio-serial-pci"]
    for port in ("status", "stdout", "stderr"):
        line += ["-chardev", f"file,id={port},path={files[port]}"]
        line += ["-device", f"virtserialport,chardev={port},name=box.{port}"]
    if box.terminal:  # Ctrl-C goes to the guest; Ctrl-A x ends QEMU
        line += ["-chardev", "stdio,id=terminal,mux=on,signal=off", "-device", "virtconsole,chardev=terminal"]
    line += ["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"]
    line += ["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
    if box.out:
        path = str(box.out.resolve()).replace(",", ",,")  # QEMU's way to write a comma in a value
        line += [
            "-fsdev",
            f"local,id=out,path={path},security_model=none",
            "-device",
            "virtio-9p-pci,fsdev=out,mount_tag=out",
        ]
    return line


def _program() -> str:
    """QEMU's path; raises BoxSetupError."""
    found = shutil.which("qemu-system-x86_64")
    if found is None:
        raise BoxSetupError("a box needs QEMU: install qemu-system-x86")
    return found


def run(box: Box, accelerator: str, stdout: Callable[[bytes], object], stderr: Callable[[bytes], object]) -> Ending:
    """Boot a box and run its command; stdout and stderr get the command's output as it comes.

    Whatever ends this (a timeout, Ctrl-C, a signal, even the death of this process) ends QEMU too.
    """
    ending = Ending()
    sinks: dict[str, Callable[[bytes], object]] = {
        "console": ending.hear_console,
        "stdout": stdout,
        "stderr": stderr,
        "status": ending.hear_status,
        "emulator": ending.emulator.extend,
    }
    archive = initrd.build(box.kernel.modules, settings_script(box), command_script(box))
    with ExitStack() as stack:
        ramdisk = stack.enter_context(_memory_file(archive))
        readers, writers = stack.enter_context(_pipes(list(sinks)))
        files = {name: f"/dev/fd/{number}" for name, number in {**writers, "initrd": ramdisk}.items()}
        line = arguments(box, accelerator, files)
        stack.enter_context(_signals_raise())
        stack.enter_context(_process(line, writers["emulator"], [ramdisk, *writers.values()], box.terminal is not None))
        for number in writers.values():
            os.close(number)
        writers.clear()
        _pump({readers[name]: sink for name, sink in sinks.items()}, ending, box.timeout)
    return ending


@contextmanager
def _process(line: list[str], stderr: int, descriptors: list[int], terminal: bool) -> Iterator[None]:
    """QEMU, running as long as the context: killed at its end, and by the kernel if this process dies first.

    A session of its own keeps the terminal's Ctrl-C from it, so that it is ended here, in order.
    """
    user = None if terminal else subprocess.DEVNULL
    line = ["setpriv", "--pdeathsig", "KILL", *line]
    process = subprocess.Popen(
        line, stdin=user, stdout=user, stderr=stderr, pass_fds=descriptors, start_new_session=True
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _pipes(names: list[str]) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
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


def _pump(sources: dict[int, Callable[[bytes], object]], ending: Ending, timeout: float) -> None:
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
def _memory_file(content: bytes) -> Iterator[int]:
    """A descriptor of a file that has no name and ends with this process."""
    number = os.memfd_create("initrd")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(content)
        yield number
    finally:
        os.close(number)


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


def verdict(box: Box, ending: Ending) -> int:
    """The command's exit status, or an exception that says why there is none.

    Raises BoxTimeoutError, GuestDiedError, or BoxSetupError if the guest refused a setting or QEMU did not start.
    """
    if ending.code is not None:
        return ending.code
    if ending.refusal:
        raise BoxSetupError(ending.refusal)
    if ending.timed_out:
        state = "was still running" if ending.ready_seconds else "had not started its command"
        raise BoxTimeoutError(f"the box {state} after {box.timeout:g} s and was ended; give it more with --timeout")
    if not ending.console and ending.emulator:
        raise BoxSetupError(f"QEMU: {ending.emulator.decode(errors='replace').strip().splitlines()[-1]}")
    panic = re.search(rb"Kernel panic - not syncing: ([^\r\n]*)", ending.console)
    reason = f"panicked: {panic[1].decode(errors='replace')}" if panic else "stopped without an exit status"
    raise GuestDiedError(f"the guest's kernel {box.kernel.release} {reason}")
