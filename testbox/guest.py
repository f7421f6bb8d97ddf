# SPDX-License-Identifier: GPL-2.0-only
"""What runs inside a box: the settings of one run and its command, as shell scripts with every word quoted."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from .kernels import Kernel
from .topology import Shape

_SBIN = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

# mitigations=off and nokaslr: addresses in a trace repeat, and emulation pays dearly for retpolines. sched_verbose:
# without it debugfs shows no domains from v5.13 on. panic=-1 with QEMU's -no-reboot ends a box whose kernel panics;
# after an oops nothing the kernel says can be trusted, so that is a panic too.
_COMMAND_LINE = "console=ttyS0 quiet panic=-1 oops=panic sched_verbose mitigations=off nokaslr random.trust_cpu=on"


@dataclass(frozen=True)
class Box:
    """One run: the kernel, the machine, what is set before the command, and the command.

    memory is in MiB, timeout in seconds of the host's clock; out is the host's folder seen as /out, or None for one
    that is thrown away; terminal is the size of the user's
    terminal where the command talks to that.
    """

    kernel: Kernel
    shape: Shape
    command: tuple[str, ...]
    memory: int = 4096
    features: tuple[str, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    timeout: float = 900.0
    out: Path | None = None
    terminal: os.terminal_size | None = None


def parse_features(text: str) -> tuple[str, ...]:
    """Scheduler features of a list such as WA_IDLE,NO_SIS_UTIL; raises UsageError."""
    names = tuple(name for name in text.split(",") if name)
    wrong = next((name for name in names if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name)), None)
    if wrong:
        raise UsageError(f"--features {text}: {wrong} is not a scheduler feature; write WA_IDLE or NO_WA_IDLE")
    return names


def parse_sysctls(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Key and value of each key=value; raises UsageError."""
    settings = []
    for text in texts:
        match = re.fullmatch(r"([a-z0-9_]+(?:\.[A-Za-z0-9_-]+)+)=([^\n]+)", text)
        if not match:
            raise UsageError(f"--sysctl {text}: write key=value, such as kernel.sched_schedstats=1")
        settings.append((match[1], match[2]))
    return tuple(settings)


def settings_script(box: Box) -> str:
    """The script init.sh sources once the file systems are up: calls to its functions, each word quoted."""
    calls: list[tuple[str, ...]] = []
    if box.kernel.modules:
        calls.append(("modules_at", str(box.kernel.modules)))
    if box.out:
        calls.append(("share_out",))
    if box.terminal:
        calls.append(("terminal", str(box.terminal.lines), str(box.terminal.columns)))
    calls += [("sysctl_set", *setting) for setting in box.sysctls]
    calls += [("feature_set", name) for name in box.features]
    calls += [("cpu_offline", str(cpu)) for cpu in box.shape.offline]
    return "".join(f"{shlex.join(call)}\n" for call in calls)


def guest_environment(interactive: bool) -> dict[str, str]:
    """What a command finds in its environment: the host's PATH and HOME, since it is the host's file system.

    The folder of this Python comes last in PATH, so that wakescope is found in a virtual environment nobody activated.
    """
    path = os.environ.get("PATH", "").split(":")
    path += [folder for folder in (*_SBIN, str(Path(sys.executable).parent)) if folder not in path]
    return {
        "PATH": ":".join(filter(None, path)),
        "HOME": os.environ.get("HOME", "/root"),
        "LANG": "C.UTF-8",
        "TERM": os.environ.get("TERM", "dumb") if interactive else "dumb",
    }


def command_script(box: Box) -> bytes:
    """The script that becomes the command, in the folder this process is in where the guest can see it, else in /."""
    environment = guest_environment(interactive=box.terminal is not None)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"cd -- {shlex.quote(os.getcwd())} 2> /dev/null || cd /")
    lines.append(f"exec {shlex.join(box.command)}")
    return os.fsencode("\n".join(lines) + "\n")


def kernel_command_line(box: Box) -> str:
    """The kernel's command line. Raises UsageError if the kernel cannot take CPU 0 offline and the shape asks it to."""
    line = _COMMAND_LINE
    if 0 in box.shape.offline:
        # CPU 0 could be offlined on x86 with this parameter until v6.5 (e59e74dc48a3, "x86/topology: Remove CPU0
        # hotplug option").
        if box.kernel.number >= (6, 5):
            raise UsageError(f"{box.kernel.release} cannot take CPU 0 offline: x86 lost that in 6.5")
        line += " cpu0_hotplug"
    return line
