# SPDX-License-Identifier: GPL-2.0-only
"""`wakescope box`: kernels, run, shell."""

from __future__ import annotations

import math
import os
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from ..errors import OutputError, UsageError
from . import accel, qemu, vng
from .apt import version_key
from .ending import BoxTimeoutError, GuestDiedError
from .guest import Box, parse_features, parse_sysctls
from .kernels import cached, catalogue, fetch, find
from .topology import NAMED, parse

app = typer.Typer(
    help="Boot real kernels with SMT, several LLCs and NUMA over this host's own file system.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Via(StrEnum):
    """What boots a box."""

    QEMU = "qemu"
    VNG = "vng"


_RUN = {Via.QEMU: qemu.run, Via.VNG: vng.run}
_KERNEL_HELP = "A version (6.12, 6.1.192), a release or package name, or the path of a bzImage or kernel tree."
_TOPOLOGY_HELP = f"Sockets, cores and threads as 2s2c2t, or one of {', '.join(NAMED)}."
_DISTANCE_HELP = "Distance between nodes: one number for all, or rows as 10,20/20,10."

KernelOption = Annotated[str, typer.Option("--kernel", help=_KERNEL_HELP)]
TopologyOption = Annotated[str, typer.Option("--topology", help=_TOPOLOGY_HELP)]
NodesOption = Annotated[int | None, typer.Option("--nodes", help="NUMA nodes; one per socket unless given.")]
DistanceOption = Annotated[str | None, typer.Option("--distance", help=_DISTANCE_HELP)]
LlcsOption = Annotated[int | None, typer.Option("--llc-per-socket", help="Last-level caches in each socket.")]
OfflineOption = Annotated[str | None, typer.Option("--offline", help="CPUs to take offline, as 3 or 1,4-5.")]
MemoryOption = Annotated[int, typer.Option("--memory", min=256, help="MiB, divided evenly among the nodes.")]
FeaturesOption = Annotated[str, typer.Option("--features", help="Scheduler features to set, as WA_IDLE,NO_SIS_UTIL.")]
SysctlOption = Annotated[list[str] | None, typer.Option("--sysctl", help="key=value, as kernel.sched_schedstats=1.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Seconds after which the box is ended.")]
ViaOption = Annotated[Via, typer.Option("--via", help="What boots it: QEMU itself, or virtme-ng.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="A folder that the guest sees, and writes, as /out.")]


@app.command()
def kernels(
    wanted: Annotated[list[str] | None, typer.Argument(help="Kernels to fetch, as 6.12; none: list them.")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Read the suites' lists again now.")] = False,
) -> None:
    """List the kernels that can be had, or fetch the newest of each version named into the cache."""
    listed = catalogue(_say, refresh)
    if wanted:
        for name in wanted:
            kernel = fetch(name, _say)
            print(f"{kernel.release}\t{kernel.version}\t{kernel.image}")
        return
    have = {kernel.release: kernel for kernel in cached()}
    rows = []
    for offer in listed.offers:
        mark = "yes" if have.pop(offer.release, None) else ""
        rows.append((offer.version, offer.release, offer.suite, f"{offer.size / 1e6:.0f}", mark))
    rows += [(kernel.version, release, "no longer", "", "yes") for release, kernel in have.items()]
    table = Table("version", "release", "suite", "MB", "cached", box=None)
    for row in sorted(rows, key=lambda row: version_key(row[0])):
        table.add_row(*row)
    console = Console(soft_wrap=True)
    console.width = max(console.width, 120)  # in a pipe too no name is cut short
    console.print(table)
    for suite, reason in listed.missing.items():
        _say(f"{suite} cannot be had: {reason}")


@app.command()
def run(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    kernel: KernelOption = "6.12",
    topology: TopologyOption = "2s2c2t",
    nodes: NodesOption = None,
    distance: DistanceOption = None,
    llcs: LlcsOption = None,
    offline: OfflineOption = None,
    memory: MemoryOption = 4096,
    features: FeaturesOption = "",
    sysctl: SysctlOption = None,
    timeout: TimeoutOption = 900,
    out: OutOption = None,
    via: ViaOption = Via.QEMU,
) -> None:
    """Run a command in a box; its output and exit status are the box's.

    The guest sees this host's file system read-only, under an overlay that is thrown away; what the command writes to
    /out is kept in --out.

    Exit status 124: the time was up; 125: the guest's kernel died; 9: the box could not be set up; any other is the
    command's own.
    """
    if not timeout > 0:  # nor is nan
        raise UsageError(f"--timeout {timeout:g}: give seconds")
    shape = parse(topology, nodes, distance, llcs, offline)
    box = Box(find(kernel, _say), shape, tuple(command), memory, parse_features(features), parse_sysctls(sysctl or []))
    _boot(replace(box, timeout=timeout, out=_folder(out)), via)


@app.command()
def shell(
    kernel: KernelOption = "6.12",
    topology: TopologyOption = "2s2c2t",
    nodes: NodesOption = None,
    distance: DistanceOption = None,
    llcs: LlcsOption = None,
    offline: OfflineOption = None,
    memory: MemoryOption = 4096,
    features: FeaturesOption = "",
    sysctl: SysctlOption = None,
    out: OutOption = None,
) -> None:
    """Open your shell in a box. Ctrl-C goes to the guest; Ctrl-A x ends the box."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("box shell needs a terminal; use box run for commands")
    shape = parse(topology, nodes, distance, llcs, offline)
    command = (os.environ.get("SHELL", "/bin/sh"),)
    box = Box(find(kernel, _say), shape, command, memory, parse_features(features), parse_sysctls(sysctl or []))
    modes = termios.tcgetattr(0)
    try:
        _boot(replace(box, timeout=math.inf, out=_folder(out), terminal=os.get_terminal_size()), Via.QEMU)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)


def _boot(box: Box, via: Via) -> NoReturn:
    """Boot the box, pass on what it says, and leave with its command's exit status; shows the console if it died."""
    try:
        ending = _RUN[via](box, accel.accelerator(box.kernel, _say), _writer(1), _writer(2))
    except KeyboardInterrupt:
        _say("interrupted")
        raise typer.Exit(130) from None
    try:
        code = ending.verdict(box)
    except (GuestDiedError, BoxTimeoutError):
        if ending.console.strip():
            _say(f"the end of the guest's console:\n{ending.console_end()}")
        raise
    raise typer.Exit(code)


def _folder(out: Path | None) -> Path | None:
    """The folder shared as /out, made if need be, in a folder that is there; raises OutputError."""
    if out is None:
        return None
    try:
        out.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise OutputError(f"--out {out}: there is no folder {out.parent} to make it in") from None
    except OSError as error:
        raise OutputError(f"--out {out}: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise OutputError(f"--out {out} is not writable for this user")
    return out


def _writer(number: int) -> Callable[[bytes], None]:
    """A sink that writes all it gets to a descriptor at once, past any buffer."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(number, data) :]

    return write


def _say(line: str) -> None:
    print(f"box: {line}", file=sys.stderr, flush=True)
