# SPDX-License-Identifier: GPL-2.0-only
"""Boot a box through virtme-ng, for those who work with it: the same machine and settings, slower to start.

virtme-ng writes to the host's /tmp, keeps no console to show after a panic, and needs udev, kmod and file on the host
(without the first two the command's output and status are lost).
"""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from .ending import Ending
from .guest import Box, command_script, kernel_command_line, settings_script
from .initrd import BoxSetupError
from .process import Sink, pipes, program, pump, running
from .qemu import ACCELERATORS
from .topology import node_memory, smp

_SCRIPTS = ("settings.sh", "vng.sh")
_UDEVD = ("/lib/systemd/systemd-udevd", "/usr/lib/systemd/systemd-udevd", "/sbin/udevd")  # where its init looks


def check_host() -> None:
    """Raise BoxSetupError for the first thing virtme-ng needs that is not on this host."""
    program("vng", "virtme-ng, from PyPI")
    program("modprobe", "kmod")
    program("file", "file")
    if not any(Path(path).exists() for path in _UDEVD):
        raise BoxSetupError("udevd, which virtme-ng needs, is not on this host: install udev")


def run(box: Box, accelerator: str, stdout: Sink, stderr: Sink) -> Ending:
    """As qemu.run, through virtme-ng; but if this process is killed outright, virtme-ng's QEMU runs on."""
    check_host()
    ending = Ending()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="wakescope-box-")))
        (folder / "settings").write_text(settings_script(box))
        (folder / "command").write_bytes(command_script(box))
        for script in _SCRIPTS:
            (folder / script).write_bytes((Path(__file__).parent / script).read_bytes())
        readers, writers = stack.enter_context(pipes(["stdout", "stderr"]))
        line = arguments(box, accelerator, folder)
        stack.enter_context(running(line, [], subprocess.DEVNULL, writers["stdout"], writers["stderr"]))
        for name in ("stdout", "stderr"):
            os.close(writers.pop(name))
        pump({readers["stdout"]: stdout, readers["stderr"]: stderr}, ending, box.timeout)
        if (folder / "status").exists():
            ending.hear_status((folder / "status").read_bytes())
    return ending


def arguments(box: Box, accelerator: str, folder: Path) -> list[str]:
    """virtme-ng's command line; folder, shared with the guest, holds the scripts of the run and gets its status."""
    out = str(box.out.resolve()) if box.out else ""
    line = [program("vng", "virtme-ng, from PyPI"), "--disable-kvm", "--user", "root", "--run", str(box.kernel.image)]
    line += ["--cpus", smp(box.shape), "--memory", f"{box.memory}M"]
    for cpus, size in zip(box.shape.node_cpus, node_memory(box.shape, box.memory), strict=True):
        line += ["--numa", f"{size}M,cpus={cpus[0]}-{cpus[-1]}"]
    for a, row in enumerate(box.shape.distances):
        line += [option for b, value in enumerate(row) if a != b for option in ("--numa-distance", f"{a},{b}={value}")]
    for option in kernel_command_line(box).split():
        line += ["--append", option]
    line += [f"--qemu-opts={shlex.join(ACCELERATORS[accelerator])}", "--rwdir", str(folder)]
    line += ["--rwdir", out] if out else []
    return [*line, "--exec", shlex.join(["sh", f"{folder}/vng.sh", str(folder), out])]
