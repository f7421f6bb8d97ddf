# SPDX-License-Identifier: GPL-2.0-only
"""The recorder against real kernels and real trouble. Every test here records on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from wakescope.schema import Outcome
from wakescope.trace import Trace
from wakescope.tracers import libbpf
from wakescope.tracers.recorder import MIB, estimate_hz, ring_sizes

WAKESCOPE = [sys.executable, "-m", "wakescope"]
live = [pytest.mark.live, pytest.mark.usefixtures("live")]


def wakescope(*arguments, **options):
    return subprocess.run([*WAKESCOPE, *map(str, arguments)], capture_output=True, text=True, check=False, **options)


def start(*arguments):
    return subprocess.Popen(
        [*WAKESCOPE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def one_line(done, code, *words):
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("wakescope: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0]


def test_ring_sizes_are_powers_of_two_within_memory():
    rings = ["wakeup", "switch", "event", "load"]
    for asked in (1, 3, 8, 100):
        sizes = ring_sizes(asked, 4, [*rings, "consult"])
        assert all(size & (size - 1) == 0 for size in sizes.values())
        assert sizes["wakeup"] >= asked * MIB
    assert list(ring_sizes(1, 4, rings)) == rings
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert sum(ring_sizes(0, 512, rings).values()) * 512 < max(memory / 8, 2 * MIB * 512)


@pytest.mark.parametrize("hz", [100, 250, 300, 1000])
def test_hz_from_jiffies(hz):
    ts = np.array([5_000_000_000, 6_007_000_000], np.uint64)
    jiffies = np.array([4_294_900_000, 4_294_900_000 + round(1.007 * hz)], np.uint64)
    assert estimate_hz(ts, jiffies) == hz
    assert estimate_hz(ts[:1], jiffies[:1]) is None


class TestInvariants:
    """What no fixture can fake."""

    pytestmark = live

    def test_every_chosen_cpu_is_allowed_and_online(self, hackbench_trace):
        rows = hackbench_trace.array("wakeups")
        placed = rows[rows["outcome"] == Outcome.PLACED]
        assert len(placed) >= 50_000
        cpu = placed["chosen_cpu"].astype(np.int64)
        word = placed["allowed"][np.arange(len(cpu)), cpu // 64]
        assert (word >> (cpu % 64).astype(np.uint64) & np.uint64(1)).all()
        online = [c.cpu for c in hackbench_trace.topology.cpus if c.online]
        assert np.isin(cpu, online).all()

    def test_flips_from_record_to_record_are_the_kernels(self, hackbench_trace):
        from wakescope.model.flips import COLUMNS, check_flips

        rows = hackbench_trace.array("wakeups", list(COLUMNS))
        windows = hackbench_trace.loss("wakeups")[["start", "end"]].itertuples(index=False, name=None)
        found = check_flips(rows, hackbench_trace.meta["hz"], windows)
        assert found.matched + found.unchanged >= 50_000
        assert found.unexplained == 0
        if not hackbench_trace.meta["not_stock"]:
            assert found.unchanged == 0

    def test_every_waking_the_probe_saw_is_a_record(self, hackbench_trace):
        outcomes = hackbench_trace.df("wakeups", ["outcome"])["outcome"]
        wakings = (~outcomes.isin([Outcome.FORK, Outcome.EXEC])).sum()
        lost = sum(r["lost"] for r in hackbench_trace.meta["rings"] if r["ring"] == "wakeup")
        assert wakings + lost == hackbench_trace.meta["counters"]["waking"]

    def test_idle_words_kept_from_switches_are_the_runqueues(self, hackbench_trace):
        counters = hackbench_trace.meta["counters"]
        if hackbench_trace.meta["tier"] == "tracepoint":
            assert counters["idle_checked"] > 50_000
            assert counters["idle_mismatch"] <= counters["idle_checked"] // 1000

    def test_times_and_sequences_are_in_order(self, hackbench_trace):
        for table in ("wakeups", "switches"):
            rows = hackbench_trace.array(table, ["ts", "seq", "cpu"])
            assert (np.diff(rows["ts"].astype(np.int64)) >= 0).all()
            for cpu in np.unique(rows["cpu"]):
                seq = rows["seq"][rows["cpu"] == cpu].astype(np.int64)
                assert len(np.unique(seq)) == len(seq)

    def test_probes_did_not_nest(self, hackbench_trace):
        misses = hackbench_trace.meta["recursion_misses"]
        assert misses["waking_tracepoint" if "waking_tracepoint" in misses else "waking_decision"] == 0


@pytest.mark.live
@pytest.mark.usefixtures("live")
def test_as_many_wakeups_as_perf_counts(tmp_path, perf):
    """perf stat counts sched_waking and sched_switch of the same command, whose own events we pick out by pid."""
    path = tmp_path / "perf.wake"
    counts = tmp_path / "counts"
    command = [perf, "stat", "-a", "-x", ",", "-o", counts, "-e", "sched:sched_waking,sched:sched_switch"]
    command += ["--", "hackbench", "-g", "1", "-l", "500"]
    assert wakescope("record", "-o", path, "--", *command).returncode == 0
    rows = [line.split(",") for line in counts.read_text().splitlines() if "sched:" in line]
    counted = {row[2]: int(row[0]) for row in rows}
    trace = Trace.open(path)
    # perf's window lies inside ours: it opens after our command starts and closes before it ends
    tasks = trace.df("tasks")
    hackbench = tasks[tasks["comm"] == "hackbench"]
    inside = trace.df("wakeups", ["ts"])["ts"].between(hackbench["ts"].min(), hackbench["ts"].max()).sum()
    assert inside <= counted["sched:sched_waking"] * 1.01
    assert trace.rows("wakeups") >= counted["sched:sched_waking"]
    assert trace.rows("switches") >= counted["sched:sched_switch"]


def test_as_many_records_as_the_kernel_ran_the_probes(tmp_path, live):
    """The kernel's own count of program runs (bpf_enable_stats) is the records there are, or were lost."""
    stats = libbpf.lib().bpf_enable_stats(libbpf.STATS_RUN_TIME)
    assert stats >= 0
    with open(stats, "rb"):
        assert (
            wakescope("record", "-o", tmp_path / "a.wake", "--", "hackbench", "-g", "1", "-l", "3000").returncode == 0
        )
    trace = Trace.open(tmp_path / "a.wake")
    runs = {program: count for program, (count, _) in trace.meta["run_time"].items()}
    lost = {ring: sum(r["lost"] for r in trace.meta["rings"] if r["ring"] == ring) for ring in ("wakeup", "switch")}
    outcomes = trace.df("wakeups", ["outcome"])["outcome"]
    wakings = (~outcomes.isin([Outcome.FORK, Outcome.EXEC])).sum()
    waking = next(count for program, count in runs.items() if program.startswith("waking_"))
    assert waking > 5_000
    assert wakings + lost["wakeup"] == waking
    assert trace.rows("switches") + lost["switch"] == runs["sched_switch"]
    if trace.meta["tier"] != "tracepoint":
        assert outcomes.isin([Outcome.PLACED, Outcome.FORK, Outcome.EXEC]).sum() == runs["select_exit"]


class TestEndings:
    """How a recording ends."""

    pytestmark = live

    def test_the_commands_status_is_kept(self, tmp_path):
        assert wakescope("record", "-o", tmp_path / "a.wake", "--", "sh", "-c", "exit 7").returncode == 7
        assert wakescope("record", "-o", tmp_path / "b.wake", "--", "sh", "-c", "kill -SEGV $$").returncode == 139
        assert Trace.open(tmp_path / "a.wake").meta["exit_status"] == 7

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signals_end_it_with_a_complete_trace(self, tmp_path, number):
        path = tmp_path / "a.wake"
        process = start("record", "-o", path)
        wait_for(lambda: (path / "raw/switch.spool").exists() and (path / "raw/switch.spool").stat().st_size, process)
        process.send_signal(number)
        process.communicate()
        assert process.returncode == 0
        trace = Trace.open(path)
        assert trace.meta["state"] == "complete"
        assert trace.rows("switches") > 0
        assert not (path / "raw").exists()

    def test_kill_then_recover_gives_every_spooled_record(self, tmp_path):
        path = tmp_path / "a.wake"
        process = start("record", "-o", path, "--", "sleep", "60")
        spool = path / "raw/switch.spool"
        wait_for(lambda: spool.exists() and spool.stat().st_size > 4000, process)
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)
        layout = json.loads((path / "raw/layout.json").read_text())
        stride = layout["switch"]["switches"]["itemsize"]
        spooled = spool.stat().st_size // stride
        one_line(wakescope("info", path), 3, "recover")
        assert wakescope("recover", path).returncode == 0
        assert Trace.open(path).rows("switches") == spooled
        assert "killed" in Trace.open(path).meta["ended_early"]
        assert "unknown: the recorder was killed" in wakescope("info", path).stdout
        one_line(wakescope("recover", path), 2, "nothing to recover")

    def test_a_full_disk_loses_nothing_spooled(self, tmp_path):
        mount = tmp_path / "small"
        mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", mount], check=True)
        try:
            path = mount / "a.wake"
            done = wakescope("record", "-o", path, "--", "hackbench", "-g", "1", "-l", "800")
            one_line(done, 6, "No space left", "recover")
            spooled = (path / "raw/wakeup.spool").stat().st_size
            kept = tmp_path / "kept.wake"
            shutil.copytree(path, kept)
        finally:
            subprocess.run(["umount", mount], check=True)
        assert wakescope("recover", kept).returncode == 0
        layout_stride = 8 + Trace.open(kept).array("wakeups").dtype.itemsize
        assert Trace.open(kept).rows("wakeups") >= spooled // (layout_stride + 8)
        assert Trace.open(kept).rows("wakeups") > 0

    def test_a_recording_under_way_cannot_be_recovered(self, tmp_path):
        path = tmp_path / "a.wake"
        process = start("record", "-o", path)
        wait_for(lambda: (path / "raw/switch.spool").exists() and (path / "raw/switch.spool").stat().st_size, process)
        one_line(wakescope("recover", path), 3, "still being recorded")
        process.send_signal(signal.SIGHUP)
        process.communicate()
        assert process.returncode == 0
        assert Trace.open(path).rows("switches") > 0

    def test_no_events_is_a_trace_too(self, tmp_path):
        path = tmp_path / "a.wake"
        assert wakescope("record", "-o", path, "--duration", "0.01").returncode == 0
        assert Trace.open(path).meta["state"] == "complete"
        for command in ("info", "report"):
            assert wakescope(command, path).returncode == 0


class TestRefusals:
    """One clear line, a distinct exit code, nothing left behind."""

    def test_existing_output(self, tmp_path, live):
        (tmp_path / "a.wake").mkdir()
        one_line(wakescope("record", "-o", tmp_path / "a.wake", "--", "true"), 6, "exists")

    def test_unwritable_place(self, tmp_path, live):
        one_line(wakescope("record", "-o", "/proc/a.wake", "--", "true"), 6, "/proc")
        one_line(wakescope("record", "-o", tmp_path / "no/such/a.wake", "--", "true"), 6, "not a folder")

    def test_missing_command(self, tmp_path, live):
        one_line(wakescope("record", "-o", tmp_path / "a.wake", "--", "no-such-command"), 127, "no such command")
        assert not (tmp_path / "a.wake").exists()

    def test_workload_that_is_none(self, tmp_path, live):
        for spec in ("tbench", "tbench:0", "nonsense:3", "hackbench:-1"):
            one_line(wakescope("record", "-o", tmp_path / "a.wake", "--workload", spec), 2, "--workload")

    @pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv gives up capabilities")
    def test_without_privileges(self, tmp_path):
        run = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *WAKESCOPE]
        done = subprocess.run(
            [*run, "record", "-o", tmp_path / "a.wake", "--", "true"], capture_output=True, text=True, check=False
        )
        one_line(done, 4, "CAP_SYS_ADMIN")
        assert not (tmp_path / "a.wake").exists()
        done = subprocess.run([*run, "doctor", "--json"], capture_output=True, text=True, check=False)
        assert done.returncode == 11
        assert json.loads(done.stdout)["can_record"] is False

    def test_not_a_trace(self, tmp_path):
        (tmp_path / "x.wake").mkdir()
        for command in ("info", "report", "validate", "recover"):
            one_line(wakescope(command, tmp_path / "x.wake"), 3, "is not a trace")
            one_line(wakescope(command, tmp_path / "y.wake"), 3, "does not exist")


@pytest.mark.live
@pytest.mark.usefixtures("live")
def test_output_belongs_to_who_called_sudo(tmp_path):
    path = tmp_path / "a.wake"
    done = wakescope("record", "-o", path, "--", "true", env={**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534"})
    assert done.returncode == 0
    assert {file.stat().st_uid for file in (path, *path.rglob("*"))} == {65534}
