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
from dataclasses import dataclass, field
from types import FrameType

from ..errors import WakescopeError
from . import initrd
from .guest import Box, command_script, guest_environment, kernel_command_line, settings_script
from .initrd import BoxSetupError
from .topology import qemu_arguments

_CONSOLE_KEPT = 1 << 20  # bytes of the console's end that are kept
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


@dataclass
class Ending:
    """How a box ended: its command's exit status if there is one, seconds to readiness, console, complaints."""

    code: int | None = None
    refusal: str = ""
    ready_seconds: float | None = None
    timed_out: bool = False
    console: bytearray = field(default_factory=bytearray)
    emulator: bytearray = field(default_factory=bytearray)

    def console_end(self, lines: int = 25) -> str:
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
    settings, command = settings_script(box), _command(box)
    started = time.monotonic()

    def console(data: bytes) -> None:
        ending.console += data
        del ending.console[:-_CONSOLE_KEPT]

    sinks = {"console": console, "stdout": stdout, "stderr": stderr, "status": _status_reader(ending, started)}
    with ExitStack() as stack:
        archive = stack.enter_context(_memory_file(initrd.build(box.kernel.modules, settings, command)))
        readers, writers = {}, {}
        for name in sinks:
            readers[name], writers[name] = os.pipe()
            stack.callback(os.close, readers[name])
        files = {name: f"/dev/fd/{number}" for name, number in {**writers, "initrd": archive}.items()}
        stack.enter_context(_signals_raise())
        # The parent's death kills QEMU (setpriv, util-linux 2.33); a session of its own keeps Ctrl-C from it, so that
        # it is ended here, in order.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *arguments(box, accelerator, files)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(archive, *writers.values()),
            start_new_session=True,
        )
        stack.callback(_end, process)
        for number in writers.values():
            os.close(number)
        assert process.stderr is not None
        stack.callback(process.stderr.close)
        sources = {readers[name]: sink for name, sink in sinks.items()}
        sources[process.stderr.fileno()] = ending.emulator.extend
        _pump(sources, ending, started + box.timeout)
    return ending


def _command(box: Box) -> bytes:
    return command_script(box.command, {**guest_environment(), **box.environment}, os.getcwd())


def _status_reader(ending: Ending, started: float) -> Callable[[bytes], None]:
    """A sink for the status port, whose lines are "ready", "exit N" and "error TEXT"."""
    pending = bytearray()

    def read(data: bytes) -> None:
        pending.extend(data)
        while b"\n" in pending:
            line, _, rest = bytes(pending).partition(b"\n")
            pending[:] = rest
            word, _, text = line.decode(errors="replace").partition(" ")
            if word == "ready":
                ending.ready_seconds = time.monotonic() - started
            elif word == "exit":
                ending.code = int(text)
            elif word == "error":
                ending.refusal = text

    return read


def _pump(sources: dict[int, Callable[[bytes], object]], ending: Ending, deadline: float) -> None:
    """Hand what arrives on each descriptor to its sink, until all are at their end or time is up."""
    with selectors.DefaultSelector() as selector:
        for number, sink in sources.items():
            selector.register(number, selectors.EVENT_READ, sink)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                ending.timed_out = ending.code is None
                return
            told = ending.code is not None or bool(ending.refusal)
            for key, _ in selector.select(remaining):
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fd)
            if not told and (ending.code is not None or ending.refusal):
                deadline = min(deadline, time.monotonic() + _POWER_OFF_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


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
