# SPDX-License-Identifier: GPL-2.0-only
"""Recording: attach the probes, run the command, spool the rings, and leave a finished trace.

The rings are drained on a timer (BPF_RB_NO_WAKEUP: the probes never wake us), the bytes written to raw/ as they are.
Whatever ends the recording, what was spooled stays: a full disk ends it early, a kill leaves raw/ for recover.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import numpy as np

from .. import __version__
from ..errors import CommandError, InterruptError, OutputError
from ..meta import FORMAT, write_json, write_meta
from ..trace import RINGS, Trace, claim, finish, layout_to_json
from . import host
from .command import Command
from .domains import read_topology
from .offsets import MEMBERS
from .perf_rings import PerfRing
from .probes import Probes
from .provenance import provenance
from .rings import Ring
from .stock import stock_reasons

INTERVAL = 0.05  # seconds between drains: with 8 MiB a ring then holds 500,000 wakeups/s per CPU

MIB = 1 << 20


@dataclass
class Progress:
    """What a status line shows: seconds, records written, their rate, fullest ring (0-1), records lost."""

    seconds: float = 0.0
    records: int = 0
    rate: float = 0.0
    fill: float = 0.0
    lost: int = 0


@dataclass
class Recording:
    """A recording under way. Its bundle exists from the start; run() drains until it ends."""

    probes: Probes
    path: Path
    meta: dict[str, Any]
    spools: dict[str, BinaryIO] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    full: OSError | None = None

    def drain(self) -> tuple[int, float]:
        """Spool what the rings hold; returns records written and the fullest ring's share. Stops at a full disk."""
        count, fill = 0, 0.0
        for kind, rings in self.probes.rings.items():
            for ring in rings:
                fill = max(fill, ring.fill)
                data = ring.pending()
                if len(data) and self._write(kind, data):
                    ring.release(len(data))
                    count += len(data) // ring.stride
        return count, fill

    def _write(self, kind: str, data: np.ndarray[Any, Any]) -> bool:
        if self.full:
            return False
        view = data.data
        try:
            while view:
                view = view[self.spools[kind].write(view) :]
        except OSError as error:
            self.full = error
            return False
        self.written[kind] = self.written.get(kind, 0) + len(data)
        return True

    def lost(self) -> int:
        """Records the rings had no room for, so far."""
        return int(self.probes.stats()["lost"].sum())


def ring_sizes(wakeup_mib: int, nr_cpus: int, rings: list[str]) -> dict[str, int]:
    """Bytes of these rings per CPU, powers of two; the wakeup ring as asked, the others in proportion to their records.

    With no size asked (0): 8 MiB each, less where that would take over a sixteenth of memory.
    """
    if not wakeup_mib:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        wakeup_mib = 8
        while wakeup_mib > 1 and wakeup_mib * 2 * MIB * nr_cpus > memory / 16:
            wakeup_mib //= 2
    size = 1 << (wakeup_mib * MIB - 1).bit_length()
    small = 1 << 16
    sizes = {"switch": max(size // 4, small), "event": max(size // 8, small), "load": max(size // 2, small)}
    return {ring: sizes.get(ring, size) for ring in rings}


def check_output(path: Path) -> None:
    """Raise OutputError if a trace cannot be made at path, before anything is started for it."""
    if not path.name:
        raise OutputError(f"-o {path} is no name for a trace: give one such as a.wake")
    parent = path.parent
    if path.exists() or path.is_symlink():
        raise OutputError(f"{path} exists: choose another name with -o, or remove it")
    if not parent.is_dir():
        raise OutputError(f"{parent} is not a folder: make it, or choose another place with -o")
    if not os.access(parent, os.W_OK):
        raise OutputError(f"{parent} is not writable: choose another place with -o")


def create_bundle(path: Path, probes: Probes, meta: dict[str, Any]) -> dict[str, BinaryIO]:
    """Make the bundle with raw/ spools and everything recover needs. Raises OutputError."""
    try:
        (path / "raw").mkdir(parents=True)
        (path / "topology.json").write_text(read_topology(probes).to_json())
        layouts = {}
        for kind in probes.rings:
            ring = probes.rings[kind][0]
            layouts[kind] = {table: layout_to_json(_spooled(d, ring)) for table, d in probes.dtypes(kind).items()}
        write_json(path / "raw" / "layout.json", layouts)
        write_meta(path, meta)
        return {kind: (path / "raw" / f"{kind}.spool").open("wb", buffering=0) for kind in probes.rings}
    except FileExistsError:
        raise OutputError(f"{path} exists: choose another name with -o, or remove it") from None
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place with -o") from None


def _spooled(dtype: np.dtype[np.void], ring: Ring | PerfRing) -> np.dtype[np.void]:
    """A record's dtype as it lies in a spool: behind the ring's own header."""
    fields: dict[str, Any] = dict(dtype.fields or {})
    return np.dtype(
        {
            "names": list(fields),
            "formats": [f[0] for f in fields.values()],
            "offsets": [f[1] + ring.header for f in fields.values()],
            "itemsize": ring.stride,
        }
    )


def initial_meta(probes: Probes, command: list[str] | None, sizes: dict[str, int]) -> dict[str, Any]:
    """meta.json as far as it is known before the first record."""
    made = probes.plan
    return {
        "format": FORMAT,
        "wakescope": __version__,
        "state": "recording",
        **host.describe(),
        "tier": made.tier,
        "loader": f"{made.loader}, {'typed loads' if made.typed else 'probe reads'}",
        "loader_why": made.why,
        "types": made.types.origin,
        "probes": made.programs,
        "refused": made.refused,
        "domain_flags": made.types.flags,
        "not_stock": stock_reasons(),
        "btf": {member: made.types.has(member) for member in MEMBERS},
        "hz": int(host.config().get("CONFIG_HZ", 0)) or None,
        "schedstats": bool(made.constants["schedstats"]),
        "command": command,
        "recorder_pid": os.getpid(),
        "ring_sizes": sizes,
        "provenance": provenance(made),
        "vmstat": {"before": host.vmstat()},
    }


class Stop:
    """Set by SIGINT, SIGTERM or SIGHUP; a descriptor to select on, so that a signal ends a wait at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """For select()."""
        return self._read

    def _handle(self, number: int, _: FrameType | None) -> None:
        self.signal = number
        os.write(self._write, b"!")

    @contextmanager
    def handled(self) -> Iterator[Stop]:
        """Catch the signals inside the block."""
        previous = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def record(
    probes: Probes,
    path: Path,
    command: list[str] | None = None,
    duration: float | None = None,
    ring_mib: int = 0,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_convert: Callable[[str, int], None] | None = None,
) -> int:
    """Record until the command ends, the duration is over, or SIGINT/SIGTERM; returns the command's exit status.

    The status is 128 + n if signal n ended the command; 0 without a command, or if the duration ended it. The trace
    at path is complete on return.
    Raises OutputError (existing or unwritable path, full disk; what was spooled is kept), CommandError, KernelError.
    """
    sizes = ring_sizes(ring_mib, probes.nr_cpus, probes.plan.rings)
    probes.create_rings(sizes)
    meta = initial_meta(probes, command, sizes)
    recording = Recording(probes, path, meta, create_bundle(path, probes, meta))
    child: Command | None = None
    with Stop().handled() as stop, claim(path / "raw"):
        try:
            meta["start_ts"] = time.monotonic_ns()
            meta["start_time"] = time.time()
            meta["recorder_cpu_s"] = time.process_time()
            write_meta(path, meta)
            probes.attach()
            meta["attached_ts"] = time.monotonic_ns()
            child = Command(command) if command else None
            timed_out = _run(recording, child, duration, stop, on_progress)
        except CommandError:
            shutil.rmtree(path)
            raise
        finally:
            _close(recording, child)
    status = _status(child, timed_out)
    meta["exit_status"] = status if command else None
    if recording.full:
        reason = recording.full.strerror
        meta["ended_early"] = f"{reason}: nothing after that was spooled"
        _keep(recording)
        raise OutputError(
            f"recording stopped early, {reason}: what was spooled is kept in {path}/raw; "
            f"make room and run 'wakescope recover {path}'"
        )
    write_meta(path, meta)
    try:
        finish(path, on_convert)
    except (KeyboardInterrupt, SystemExit):
        raise InterruptError(f"interrupted while writing {path}: run 'wakescope recover {path}'") from None
    _complete(path)
    return status


def _run(
    recording: Recording,
    child: Command | None,
    duration: float | None,
    stop: Stop,
    on_progress: Callable[[Progress], None],
) -> bool:
    """Drain until the recording ends; whether that was because its time was over."""
    pidfd = os.pidfd_open(child.pid) if child else None
    watched: list[Any] = [stop] + ([pidfd] if pidfd is not None else [])
    begin = last = time.monotonic()
    progress = Progress()
    since = 0
    try:
        while True:
            ready, _, _ = select.select(watched, [], [], INTERVAL)
            count, progress.fill = recording.drain()
            progress.records += count
            since += count
            now = time.monotonic()
            if now - last >= 0.25:
                progress.seconds, progress.rate, progress.lost = now - begin, since / (now - last), recording.lost()
                last, since = now, 0
                on_progress(progress)
            if ready or (recording.full and child is None):
                return False
            if duration is not None and now - begin >= duration:
                return True
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _close(recording: Recording, child: Command | None) -> None:
    """See the command to its end, detach, and spool what is left.

    In that order: detaching takes a grace period for each probe, in which rings fill that nobody drains.
    """
    probes, meta = recording.probes, recording.meta
    if child:
        child.end(recording.drain)
    meta["detach_ts"] = time.monotonic_ns()
    probes.stop(host.cpu_list(host.read("/sys/devices/system/cpu/online") or "0"))
    meta["stop_ts"] = time.monotonic_ns()
    recording.drain()
    for spool in recording.spools.values():
        spool.close()
    stats = probes.stats()
    kinds = list(RINGS)
    order = {"wakeup": 0, "switch": 1, "event": 2, "consult": 3, "load": 4}
    meta["rings"] = [
        {
            "ring": kind,
            "cpu": cpu,
            "tried": int(stats["tried"][cpu][order[kind]]),
            "lost": int(stats["lost"][cpu][order[kind]]),
        }
        for kind in kinds
        if kind in probes.rings
        for cpu in range(probes.nr_cpus)
    ]
    counters = ("waking", "decisions", "idle_checked", "idle_mismatch")
    meta["counters"] = {name: int(stats[name].sum()) for name in counters}
    infos = {program: probes.object.info(program) for program in probes.plan.programs}
    meta["recursion_misses"] = {program: int(info.recursion_misses) for program, info in infos.items()}
    meta["run_time"] = {p: [int(i.run_cnt), int(i.run_time_ns)] for p, i in infos.items() if i.run_cnt}
    meta["recorder_cpu_s"] = time.process_time() - meta["recorder_cpu_s"]
    meta["vmstat"]["after"] = host.vmstat()


def _status(child: Command | None, timed_out: bool) -> int:
    if child is None:
        return 0
    code = child.wait()
    if timed_out and code in (-signal.SIGTERM, -signal.SIGKILL):
        return 0  # we ended it, as asked
    return code if code >= 0 else 128 - code


def _keep(recording: Recording) -> None:
    """After a full disk: meta.json as it should be if there is room for it, else as it was at the start."""
    try:
        write_meta(recording.path, recording.meta)
    except OSError:
        (recording.path / "meta.json.new").unlink(missing_ok=True)


def _complete(path: Path) -> None:
    """What is known only from the finished trace: HZ where the kernel's configuration is not to be had."""
    trace = Trace.open(path)
    if trace.meta.get("hz") is None:
        rows = trace.array("wakeups", ["ts", "jiffies"])
        trace.meta["hz"] = estimate_hz(rows["ts"], rows["jiffies"])
        write_meta(path, trace.meta)


def estimate_hz(ts: np.ndarray[Any, Any], jiffies: np.ndarray[Any, Any]) -> int | None:
    """The nearest HZ the kernel can be built with, from jiffies against ns; None if the span is under 0.2 s."""
    if len(ts) < 2 or int(ts[-1]) - int(ts[0]) < 200_000_000:
        return None
    rate = (int(jiffies[-1]) - int(jiffies[0])) / ((int(ts[-1]) - int(ts[0])) / 1e9)
    return min((100, 250, 300, 1000), key=lambda hz: abs(hz - rate))


def give_to_caller(path: Path) -> None:
    """Under sudo, hand the trace to the user who called it."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and (uid + gid).isascii() and uid.isdigit() and gid.isdigit():
        for file in (path, *path.rglob("*")):
            os.chown(file, int(uid), int(gid), follow_symlinks=False)
