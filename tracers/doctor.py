# SPDX-License-Identifier: GPL-2.0-only
"""What this machine allows, and what to do about what it does not: the findings of `wakescope doctor`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import WakescopeError
from . import host, libbpf
from .offsets import Types, kernel_types
from .probes import Plan, Probes, object_path, plan
from .recorder import INTERVAL, ring_sizes
from .stock import stock_reasons

OK, NOTE, BAD = "ok", "note", "bad"
CAP_SYS_ADMIN = 21


@dataclass
class Check:
    """One finding: what was looked at, how it stands (ok, note, bad), what it is, and the remedy if it needs one."""

    name: str
    state: str
    found: str
    remedy: str = ""


def examine(vmlinux: Path | None = None, loader: str | None = None) -> list[Check]:
    """All findings, in the order a reader needs them, for record with the same vmlinux and loader.

    Loads the probes for a moment; attaches nothing.
    """
    checks = [privileges(), _lockdown(), *_bpf(vmlinux, loader)]
    checks += [*_kernel(), _schedstats(), _numa(), _features(), _rings()]
    return checks


def to_json(checks: list[Check]) -> dict[str, Any]:
    """One object: kernel, can_record, and checks as they are shown."""
    return {
        "kernel": platform.release(),
        "can_record": all(c.state != BAD for c in checks),
        "checks": [asdict(c) for c in checks],
    }


def privileges() -> Check:
    """Whether this process may load probes: by its capabilities, since root in a container may have none."""
    status = host.read("/proc/self/status") or ""
    line = next((row for row in status.splitlines() if row.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    if held >> CAP_SYS_ADMIN & 1:
        return Check("privileges", OK, "CAP_SYS_ADMIN")
    # CAP_BPF and CAP_PERFMON load programs, but libbpf also walks the kernel's BTF objects, which takes more
    found = "no CAP_SYS_ADMIN"
    if os.geteuid() == 0:
        return Check("privileges", BAD, found, "this root is confined: leave the container, or give it CAP_SYS_ADMIN")
    return Check("privileges", BAD, found, "record as root: sudo wakescope record …")


def _lockdown() -> Check:
    text = host.read("/sys/kernel/security/lockdown")
    if text is None:
        return Check("lockdown", OK, "not built in, or securityfs not mounted")
    mode = text[text.find("[") + 1 : text.find("]")]
    if mode == "confidentiality":
        return Check("lockdown", BAD, mode, "this mode forbids BPF reads: boot with lockdown=integrity or none")
    return Check("lockdown", OK, mode)


def _bpf(vmlinux: Path | None, loader: str | None) -> Iterator[Check]:
    try:
        types = kernel_types(vmlinux)
    except WakescopeError as error:
        yield Check("types", BAD, str(error))
        return
    yield Check("types", OK if types.btf else NOTE, f"from {types.origin}")
    try:
        made = plan(types, None, loader)
    except WakescopeError as error:
        yield Check("tier", BAD, str(error))
        return
    yield Check("loader", OK, made.loader, made.why)
    yield Check("tier", OK if made.tier == "decision" else NOTE, made.tier, made.refused.get("decision", ""))
    yield from _deep(types, loader)
    yield _load(made)


def _deep(types: Types, loader: str | None) -> Iterator[Check]:
    try:
        deep = plan(types, "deep", loader)
    except WakescopeError:
        return
    unseen = [reason for program, reason in deep.refused.items() if program in ("available_idle", "share_cache")]
    yield Check("tier deep", NOTE if unseen else OK, "partly" if unseen else "possible", "; ".join(unseen))


def _load(made: Plan) -> Check:
    """Whether the kernel takes the programs of the plan: the verifier's word, not a guess."""
    try:
        object_path(made.typed, libbpf.possible_cpus())
        with Probes(made):
            pass
    except WakescopeError as error:
        return Check("probes", BAD, str(error), "" if os.geteuid() == 0 else "run doctor as root")
    rest = "; ".join(f"without {program}: {why}" for program, why in made.refused.items() if program != "decision")
    return Check("probes", OK, f"{len(made.programs)} programs verified" + (f" ({rest})" if rest else ""))


def _kernel() -> Iterator[Check]:
    reasons = stock_reasons()
    meaning = "captures hold; the model's agreement is reported, and means nothing about stock kernels"
    if reasons:
        yield Check("stock placement", NOTE, "; ".join(reasons), meaning)
    else:
        yield Check("stock placement", OK, f"{platform.release()} is one the model knows")


def _schedstats() -> Check:
    value = host.sysctls().get("kernel.sched_schedstats")
    if value == "1":
        return Check("schedstats", OK, "on: wake_affine's verdicts are checked against the kernel's counters")
    if value is None:
        return Check("schedstats", NOTE, "not built in", "wake_affine's verdicts are only computed")
    return Check("schedstats", NOTE, "off", "to check wake_affine's verdicts: sysctl kernel.sched_schedstats=1")


def _numa() -> Check:
    value = host.sysctls().get("kernel.numa_balancing")
    nodes = host.read("/sys/devices/system/node/online") or "0"
    if value is None:
        return Check("NUMA balancing", NOTE, "not built in: no NUMA retry timing to see")
    state = "on" if value != "0" else "off"
    return Check("NUMA balancing", OK if value != "0" and nodes != "0" else NOTE, f"{state}, nodes {nodes}")


def _features() -> Check:
    features = host.sched_features()
    if features is not None:
        return Check("sched features", OK, f"{len(features)} read")
    remedy = "mount -t debugfs none /sys/kernel/debug" if os.geteuid() == 0 else "run as root"
    if host.config().get("CONFIG_SCHED_DEBUG") == "n":
        remedy = "the kernel has no CONFIG_SCHED_DEBUG: the release's defaults are assumed"
    return Check("sched features", NOTE, "not readable: the release's defaults are assumed", remedy)


def _rings() -> Check:
    cpus = os.cpu_count() or 1
    sizes = ring_sizes(0, cpus, ["wakeup", "switch", "event", "load"])
    rate = sizes["wakeup"] / 328 / (4 * INTERVAL)  # four drains late is the slack a busy machine needs
    total = sum(sizes.values()) * cpus >> 20
    return Check("rings", OK, f"{total} MiB in all: {rate:,.0f} wakeups/s on each CPU", "larger: --ring MIB")
