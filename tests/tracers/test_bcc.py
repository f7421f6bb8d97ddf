# SPDX-License-Identifier: GPL-2.0-only
"""The loader bcc: chosen when it should be, refused in one line, and saying of every wakeup what libbpf says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import wakescope
from wakescope import schema
from wakescope.errors import KernelError
from wakescope.tracers import bcc, bcc_headers, offsets, probes
from wakescope.tracers.offsets import Types

from . import bcc_pairs
from .bcc_pairs import agree

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(wakescope.__file__).parents[1])}
FLAGS = {"BALANCE_EXEC": 1, "BALANCE_FORK": 2, "SHARE_LLC": 9}
NO_BTF = Types("/boot/vmlinux", flags=FLAGS)
BTF = Types("/sys/kernel/btf/vmlinux", flags=FLAGS, btf=True, typed=True, per_cpu=True)


@pytest.fixture(scope="session")
def compiles(live):
    """Skips where BCC or kernel headers are not installed; make setup installs both."""
    try:
        bcc.module()
        with bcc_headers.header_tree():
            pass
    except KernelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("types", "asked", "loader", "why"),
    [
        (BTF, None, "libbpf", "this kernel has BTF"),
        (BTF, "bcc", "bcc", "asked for"),
        (NO_BTF, None, "bcc", "types are from /boot/vmlinux, not from BTF"),
        (NO_BTF, "bcc", "bcc", "asked for"),
    ],
)
def test_the_loader_follows_from_where_the_types_are_from(types, asked, loader, why):
    made = probes.plan(types, "tracepoint", asked)
    assert (made.loader, made.why) == (loader, why)
    assert made.typed == (loader == "libbpf")


@pytest.mark.parametrize(
    ("types", "tier", "loader", "words"),
    [
        (NO_BTF, None, "libbpf", "use --loader bcc"),
        (BTF, "deep", "bcc", "tier deep needs the loader libbpf"),
        (Types("here"), None, None, "does not number the domain flags"),
    ],
)
def test_what_cannot_be_is_one_line(types, tier, loader, words):
    with pytest.raises(KernelError, match=words):
        probes.plan(types, tier, loader)


def test_btf_alone_does_not_make_it_libbpf(monkeypatch):
    """Kernels from 5.4 on have BTF, but before 5.10 no raw tracepoint program can be run by hand."""
    monkeypatch.setattr(probes.host, "symbols", lambda: {"select_task_rq_fair": 1})
    made = probes.plan(BTF, "tracepoint")
    assert (made.loader, made.typed) == ("bcc", False)
    assert made.why == "this kernel cannot run raw tracepoint programs by hand (before 5.10)"
    with pytest.raises(KernelError, match=r"libbpf cannot be used, this kernel cannot .* use --loader bcc"):
        probes.plan(BTF, "tracepoint", "libbpf")


def test_a_tracepoint_that_types_do_not_tell_of_is_known_by_its_symbol(monkeypatch):
    """BTF has tracepoints as btf_trace_* from 5.5 on; arguments are then told by type, else as they were before 5.7."""
    symbols = {bcc.BY_HAND: 1, "__tracepoint_sched_stick_numa": 1}
    monkeypatch.setattr(probes.host, "symbols", lambda: symbols)
    made = probes.plan(BTF, "tracepoint")
    assert "stick_numa" in made.programs
    assert made.constants["stick_has_dst"] == 0
    assert made.refused["move_numa"] == "this kernel has no tracepoint sched_move_numa"
    typed = Types("here", flags=FLAGS, tracepoints={"sched_stick_numa": 4}, btf=True)
    assert probes.plan(typed, "tracepoint").constants["stick_has_dst"] == 1


def test_preempt_count_is_found_on_its_own_or_in_pcpu_hot():
    """A symbol of its own up to 6.1 and from 6.15 on, a member of pcpu_hot from 6.2 to 6.14."""
    hot = Types("here", members={"pcpu_hot": {"preempt_count": (8, 4)}})
    assert probes._preempt_count(NO_BTF, {"__preempt_count": 0x1F}) == 0x1F
    assert probes._preempt_count(hot, {"pcpu_hot": 0x100}) == 0x108
    assert probes._preempt_count(NO_BTF, {}) == 0


def test_the_source_is_one_file_with_every_structure_laid_out():
    text = bcc.source(Types("here", members={"rq": {"nr_running": (4, 4)}}))
    assert '#include "' not in text
    assert "char before_nr_running[4]; __u32 nr_running;" in text
    assert "struct rq {\n" not in text
    for name in ("rq", "task_struct", "pcpu_hot"):  # headers may define structures of the same names
        assert f"#define {name} wakescope_{name}\n" in text


def test_bcc_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "bcc", None)
    with pytest.raises(KernelError, match=r"BCC cannot be used .*: install the package python3-bpfcc"):
        bcc.module()


@pytest.mark.parametrize("code", [None, "", "from bcc.libbcc import lib", "import ctypes; ctypes.pythonapi.none", "("])
def test_what_is_left_of_bcc_is_one_line(tmp_path, monkeypatch, code):
    """An empty folder, and modules without BPF, without their parts, for another libbcc or another Python."""
    (tmp_path / "bcc").mkdir()
    if code is not None:
        (tmp_path / "bcc/__init__.py").write_text(code)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "bcc").exists()])
    monkeypatch.setattr(bcc, "PACKAGES", str(tmp_path))
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "bcc"}
    try:
        with pytest.raises(KernelError, match=r"^BCC cannot be used .*: install the package python3-bpfcc"):
            bcc.module()
    finally:
        sys.modules.pop("bcc", None)
        sys.modules.update(loaded)


def tree(root, path, *files):
    for file in files:
        (root / path / file).parent.mkdir(parents=True, exist_ok=True)
        (root / path / file).write_text(f"{path}/{file}")


def test_headers_are_the_running_kernels_then_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(bcc_headers.platform, "release", lambda: "6.1.0-9-amd64")
    whole = ("include/generated/autoconf.h", "include/linux/kconfig.h")
    for name in ("linux-headers-6.1.0-10-amd64", "linux-headers-6.1.0-9-amd64", "linux-headers-5.10.0-1-amd64"):
        tree(tmp_path, f"usr/src/{name}", *whole)
    tree(tmp_path, "usr/src/linux-headers-6.12.0-common", "include/linux/kconfig.h")
    tree(tmp_path, "usr/src/linux-headers-7.0-broken", "include/generated/autoconf.h")
    found = [trees[0].name.removeprefix("linux-headers-") for trees in bcc_headers.installed(tmp_path)]
    assert found == ["6.1.0-9-amd64", "6.1.0-10-amd64", "5.10.0-1-amd64"]


def test_debians_split_headers_are_merged_outside_lib_modules(tmp_path, monkeypatch):
    flavour, common = "usr/src/linux-headers-6.1.0-9-amd64", "usr/src/linux-headers-6.1.0-9-common"
    tree(tmp_path, flavour, "include/generated/autoconf.h", "arch/x86/include/generated/asm/a.h")
    tree(tmp_path, common, "include/linux/kconfig.h", "arch/x86/include/asm/page.h")
    (tmp_path / flavour / "Makefile").write_text(f"include /{common}/Makefile\n")
    build = tmp_path / "lib/modules/6.1.0-9-amd64/build"
    build.parent.mkdir(parents=True)
    build.symlink_to(tmp_path / flavour)
    found = bcc_headers.installed(tmp_path)
    assert found == [[tmp_path / flavour, tmp_path / common]]
    monkeypatch.setattr(bcc_headers, "installed", lambda: found)
    with bcc_headers.header_tree() as merged:
        for name in ("include/linux/kconfig.h", "arch/x86/include/asm/page.h"):
            assert (merged / name).read_text() == f"{common}/{name}"
        for name in ("include/generated/autoconf.h", "arch/x86/include/generated/asm/a.h"):
            assert (merged / name).read_text() == f"{flavour}/{name}"
    assert not merged.exists()
    assert list((tmp_path / "lib/modules/6.1.0-9-amd64").iterdir()) == [build]


def test_headers_that_are_not_installed_are_one_line(monkeypatch):
    monkeypatch.setattr(bcc_headers, "installed", list)
    with (
        pytest.raises(KernelError, match="BCC needs kernel headers, of any version: install"),
        bcc_headers.header_tree(),
    ):
        pass


@pytest.mark.live
@pytest.mark.usefixtures("compiles")
def test_what_bcc_refuses_is_one_line(monkeypatch, capfd):
    monkeypatch.setattr(bcc, "QUIET", ("-DRING_WAKEUP=1",))
    with pytest.raises(KernelError, match=r"BCC cannot load the probes: .*error"):
        probes.Probes(probes.plan(offsets.kernel_types(), "tracepoint", "bcc"))
    assert capfd.readouterr().err == ""


@pytest.mark.live
@pytest.mark.usefixtures("compiles")
def test_both_loaders_see_every_wakeup_alike():
    """Both attached at once on this kernel: every record has its partner, and what differs moved meanwhile."""
    run = [sys.executable, HERE / "bcc_pairs.py", "--20000", "hackbench", "-g", "2", "-l", "1000"]
    said = json.loads(subprocess.run(run, check=True, capture_output=True, env=ENVIRONMENT).stdout)
    agree(said)


def looks(**middle):
    """Three looks at 1,000 placed wakeups of CPU 1, prev CPU 0, of which libbpf's has some values of its own."""
    rows = np.zeros(1000, schema.dtype("wakeups", 1))
    rows["cpu"], rows["ts"], rows["ts_exit"] = 1, np.arange(1000) * 100_000, np.arange(1000) * 100_000 + 500
    rows["seq"], rows["idle"] = np.arange(1000), 1
    rows["prev_load"] = rows["prev_load_exit"] = 500
    other = rows.copy()
    for name, value in middle.items():
        other[name][500] = value
    return [rows, other, rows.copy()]


NO_SWITCHES = np.zeros(0, schema.dtype("switches"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("prev_load", 501), ("idle", 3), ("wakee_pid", 7), ("chosen_cpu", 1), ("prev_load_exit", 1), ("wakee_h_load", 1)],
)
@pytest.mark.parametrize("tier", ["decision", "tracepoint"])
def test_one_value_that_only_one_loader_has_is_unexplained(name, value, tier):
    said = bcc_pairs.compare(looks(**{name: value}), tier, NO_SWITCHES)
    values = said["fields"][name].pop("values")
    assert said["fields"] == {name: {"differ": 1, "returned": 0, "unexplained": 1}}
    assert len(values) == 1
    assert said["differ"] == 1


def test_what_moved_between_two_looks_of_one_loader_is_explained():
    moved = looks(prev_load=501, prev_nr_running=1)
    moved[2]["prev_load"][500] = 502
    fields = bcc_pairs.compare(moved, "tracepoint", NO_SWITCHES)["fields"]
    assert {field["unexplained"] for field in fields.values()} == {0}
    assert fields["prev_load"]["differ"] == 1


def test_what_came_back_needs_a_witness_on_its_cpu():
    switches = np.zeros(1, NO_SWITCHES.dtype)
    switches["ts"] = 500 * 100_000 + 300
    for cpu, unexplained in ((0, 0), (2, 1)):
        switches["cpu"] = cpu
        field = bcc_pairs.compare(looks(prev_nr_running=1), "tracepoint", switches)["fields"]["prev_nr_running"]
        assert field["values"] == [["0", "1", "0", 500]]
        assert (field["returned"], field["unexplained"]) == (1 - unexplained, unexplained)


def test_a_decision_that_bcc_missed_must_have_met_a_fault():
    faults = np.zeros(1, [("ts", "u8"), ("pid", "i4"), ("kind", "u2"), ("event", "u1")])
    faults["ts"], faults["pid"], faults["kind"], faults["event"] = 500 * 100_000, 7, 2, 3
    seen = looks(context=schema.Context.HARDIRQ)
    for look in seen:
        look["waker_pid"] = 7
    for look in (seen[0], seen[2]):
        look["outcome"][500] = schema.Outcome.WAKELIST
    assert np.flatnonzero(bcc_pairs.missed(*seen[:2], faults)).tolist() == [500]
    faults["pid"] = 8
    assert not bcc_pairs.missed(*seen[:2], faults).any()
    faults["pid"], seen[1]["context"] = 7, schema.Context.TASK
    assert not bcc_pairs.missed(*seen[:2], faults).any()


@pytest.mark.live
@pytest.mark.usefixtures("compiles")
def test_the_walk_finds_the_tasks_the_iterator_finds():
    """Tasks living when a recording begins: the same, under the same start, tag and name."""
    types, seen = offsets.kernel_types(), []
    for loader in probes.LOADERS:
        with probes.Probes(probes.plan(types, "tracepoint", loader)) as loaded:
            loaded.create_rings({"wakeup": 1 << 16, "switch": 1 << 16, "event": 1 << 20})
            loaded.object.run_iterator("task_snapshot")
            dtype = loaded.dtypes("event")["tasks"]
            rows = [
                record.tobytes()[8 : 8 + dtype.itemsize]
                for ring in loaded.rings["event"]
                for record in ring.pending().reshape(-1, ring.stride)
            ]
            seen.append({tuple(dtype_row(row, dtype)) for row in rows})
    threads = {int(p.name) for p in Path("/proc").glob("[0-9]*/task/[0-9]*")}
    both = seen[0] & seen[1]
    assert len(both) > 0.8 * len(threads)
    assert {row[0] for row in both} >= {2, os.getpid()}


def dtype_row(row, dtype):
    values = np.frombuffer(row, dtype)[0]
    return [values[name].item() for name in ("pid", "tgid", "parent_pid", "start", "tag", "event", "comm")]


@pytest.mark.live
@pytest.mark.usefixtures("compiles")
def test_a_recording_says_which_loader_and_why(tmp_path):
    path = tmp_path / "bcc.wake"
    run = [sys.executable, "-m", "wakescope", "record", "--loader", "bcc", "-o", path, "--", "hackbench", "-l", "100"]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert "loader bcc: asked for" in done.stderr
    meta = json.loads((path / "meta.json").read_text())
    assert (meta["loader"], meta["loader_why"]) == ("bcc, probe reads", "asked for")
    assert meta["rows"]["wakeups"] > 1000
    assert sum(ring["lost"] for ring in meta["rings"]) == 0
