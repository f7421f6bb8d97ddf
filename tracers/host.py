# SPDX-License-Identifier: GPL-2.0-only
"""What the running kernel is: release, configuration, switches, symbols, and whether its placement is stock."""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

FEATURES = (Path("/sys/kernel/debug/sched/features"), Path("/sys/kernel/debug/sched_features"))

# Functions of kernel/sched that place wakeups on no released kernel: their presence means a private path.
# vcpu_pack_room: seen on hosted 6.18 builds with sched_vcpu_pack= on the command line.
PRIVATE_FUNCTIONS = ("vcpu_pack_room",)

SYSCTLS = (
    "kernel.numa_balancing",
    "kernel.sched_schedstats",
    "kernel.sched_autogroup_enabled",
    "kernel.sched_energy_aware",
    "kernel.kptr_restrict",
    "kernel.unprivileged_bpf_disabled",
)


def read(path: str | Path) -> str | None:
    """A small file's text without its last newline, or None if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").rstrip("\n")
    except OSError:
        return None


@cache
def config() -> dict[str, str]:
    """The kernel's build configuration, {} where the kernel does not give it away."""
    release = platform.release()
    for path in (Path("/proc/config.gz"), Path(f"/boot/config-{release}"), Path(f"/lib/modules/{release}/config")):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace")
        return dict(re.findall(r"^(CONFIG_\w+)=(.*)$", text, re.MULTILINE))
    return {}


@cache
def symbols() -> dict[str, int]:
    """Addresses by name of the kernel's own symbols (not modules'); all zero without CAP_SYSLOG."""
    found: dict[str, int] = {}
    for line in (read("/proc/kallsyms") or "").splitlines():
        if not line.endswith("]"):
            address, _, name = line.split(" ", 2)
            found.setdefault(name, int(address, 16))
    return found


def series() -> tuple[int, int]:
    """The running kernel's release series: (6, 12)."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)


def cpu_list(text: str) -> list[int]:
    """CPU numbers of a kernel list such as 0-3,8,10-11. Raises ValueError if it is not one."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def sched_features() -> list[str] | None:
    """Scheduler features as debugfs lists them (NO_ prefix for those off), or None if it does not."""
    for path in FEATURES:
        text = read(path)
        if text is not None:
            return text.split()
    return None


def sysctls() -> dict[str, str]:
    """The sysctls that bear on placement and tracing, those that exist."""
    values = {name: read("/proc/sys/" + name.replace(".", "/")) for name in SYSCTLS}
    return {name: value for name, value in values.items() if value is not None}


def vmstat() -> dict[str, int]:
    """The NUMA balancing counters of /proc/vmstat, {} where there are none."""
    rows = (line.split() for line in (read("/proc/vmstat") or "").splitlines())
    return {name: int(value) for name, value in rows if name.startswith(("numa_", "pgmigrate_"))}


def perf() -> str | None:
    """The perf program, or None.

    Ubuntu's /usr/bin/perf refuses a kernel other than the one its package came with; the program behind it does not.
    """
    programs = Path("/usr/lib").glob("linux-tools-*/perf")
    newest = max(programs, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)], default=None)
    return str(newest) if newest else shutil.which("perf")


def sched_ext() -> str | None:
    """Name of the sched_ext scheduler that is loaded, or None."""
    if read("/sys/kernel/sched_ext/state") != "enabled":
        return None
    return read("/sys/kernel/sched_ext/root/ops") or "unnamed"


def not_stock(release: str, known: bool) -> list[str]:
    """Reasons why this kernel's placement is not what the model knows; [] for a stock kernel.

    known: whether the model has features for the release.
    """
    reasons = [f"private placement function {name} in kallsyms" for name in PRIVATE_FUNCTIONS if name in symbols()]
    scheduler = sched_ext()
    if scheduler:
        reasons.append(f"sched_ext scheduler {scheduler} is loaded and places its tasks itself")
    if not known:
        reasons.append(f"release {release} is not one the model knows")
    return reasons


def version() -> str:
    """`uname -v`, and on Ubuntu /proc/version_signature, the only place that names the stable release behind it."""
    signature = read("/proc/version_signature")
    return platform.version() + (f" ({signature})" if signature else "")


def describe() -> dict[str, Any]:
    """What meta.json says of the machine."""
    uname = platform.uname()
    return {
        "kernel": uname.release,
        "kernel_version": version(),
        "machine": uname.machine,
        "cmdline": read("/proc/cmdline"),
        "boot_id": read("/proc/sys/kernel/random/boot_id"),
        "nr_cpus": os.cpu_count(),
        "sched_features": sched_features(),
        "sysctls": sysctls(),
        "hypervisor": "hypervisor" in (read("/proc/cpuinfo") or ""),
    }
