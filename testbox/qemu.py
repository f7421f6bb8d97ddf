# SPDX-License-Identifier: GPL-2.0-only
"""Boot a box in QEMU.

Nothing is written on the host but the folder shared as /out: the initramfs is handed over in memory, and console,
output and status come back through pipes.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack

from . import initrd
from .ending import Ending
from .guest import Box, command_script, kernel_command_line, settings_script
from .process import Sink, memory_file, pipes, program, pump, running
from .topology import qemu_arguments

# Emulation runs one thread: with one per CPU (thread=multi) guests are corrupted when the kernel patches its own code,
# as attaching a probe does. -cpu max is an AMD to the guest, and QEMU does not emulate AMD's TOPOEXT: as an Intel it
# shows SMT siblings, and a stable TSC.
ACCELERATORS = {
    "tcg": ["-accel", "tcg,thread=single", "-cpu", "max,vendor=GenuineIntel"],
    "kvm": ["-accel", "kvm", "-cpu", "host,host-cache-info=off,l3-cache=on"],
}


def run(box: Box, accelerator: str, stdout: Sink, stderr: Sink) -> Ending:
    """Boot a box and run its command; stdout and stderr get the command's output as it comes.

    accelerator is a key of ACCELERATORS. Whatever ends this (a timeout, Ctrl-C, a signal, the death of this process)
    ends QEMU too.
    """
    ending = Ending()
    sinks: dict[str, Sink] = {
        "console": ending.hear_console,
        "stdout": stdout,
        "stderr": stderr,
        "status": ending.hear_status,
        "emulator": ending.emulator.extend,
    }
    archive = initrd.build(box.kernel.modules, settings_script(box), command_script(box))
    with ExitStack() as stack:
        ramdisk = stack.enter_context(memory_file(archive))
        readers, writers = stack.enter_context(pipes(list(sinks)))
        files = {name: f"/dev/fd/{number}" for name, number in {**writers, "initrd": ramdisk}.items()}
        user = None if box.terminal else subprocess.DEVNULL
        line = arguments(box, accelerator, files)
        stack.enter_context(running(line, [ramdisk, *writers.values()], user, user, writers["emulator"]))
        for name in sinks:
            os.close(writers.pop(name))
        pump({readers[name]: sink for name, sink in sinks.items()}, ending, box.timeout)
    return ending


def arguments(box: Box, accelerator: str, files: dict[str, str]) -> list[str]:
    """QEMU's command line; files says where initrd, console, stdout, stderr and status are."""
    line = [
        program("qemu-system-x86_64", "qemu-system-x86"),
        "-machine",
        "q35",
        *ACCELERATORS[accelerator],
        *qemu_arguments(box.shape, box.memory),
    ]
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
        line += ["-fsdev", f"local,id=out,path={path},security_model=none"]
        line += ["-device", "virtio-9p-pci,fsdev=out,mount_tag=out"]
    return line
