# SPDX-License-Identifier: GPL-2.0-only
"""DWARF of a small vmlinux made here; that a real one gives what BTF gives is measured in docs/loaders.md."""

import json
import re
import shutil
import struct
import subprocess
from dataclasses import asdict
from random import Random

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wakescope.errors import KernelError
from wakescope.tracers import dwarf
from wakescope.tracers.bcc import source
from wakescope.tracers.offsets import Types, kernel_types
from wakescope.tracers.probes import plan

FAIR = """
typedef unsigned int u32;
struct list_head { struct list_head *next, *prev; };
struct sched_avg { unsigned long last; const volatile unsigned long load_avg; u32 util_avg; };
struct sched_entity { char pad[3]; unsigned char sched_delayed; struct sched_avg avg __attribute__((aligned(64))); };
struct thread_info { unsigned long flags; u32 cpu; };
struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	union { struct { u32 hidden; u32 prio; }; u32 policy; };
	unsigned migration_disabled : 4, bit : 1;
	struct sched_entity se;
	struct list_head tasks;
	char comm[16];
	const struct task_struct *last_wakee;
	unsigned short words[3][5];
	int wake_cpu, pid;
	unsigned int wakee_flips;
	const void *cpus_ptr;
} task;
struct cfs_rq { struct sched_avg avg; };
struct sched_domain { struct sched_domain *parent; void *groups; int flags; unsigned int span_weight; };
struct rq { unsigned int nr_running; struct task_struct *curr, *idle; struct cfs_rq cfs; struct sched_domain *sd; } rq;
struct pcpu_hot;
int select_task_rq_fair(struct task_struct *p, int prev_cpu, int wake_flags) { return prev_cpu; }
"""
CORE = """
struct task_struct;
typedef void (*btf_trace_sched_switch)(void *, _Bool, struct task_struct *, struct task_struct *, unsigned int);
btf_trace_sched_switch handler;
"""
TOPOLOGY = """
enum { __SD_BALANCE_NEWIDLE, __SD_BALANCE_EXEC, __SD_BALANCE_FORK, __SD_SHARE_PKG_RESOURCES = 9, __SD_FLAG_CNT } flags;
"""
CPU = "enum cpuhp_state { CPUHP_INVALID = -1, CPUHP_OFFLINE, CPUHP_AP_ACTIVE = 235 } state;"
UNITS = {"sched/fair": FAIR, "sched/core": CORE, "sched/build_utility": TOPOLOGY, "cpu": CPU}

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


def link(folder, flags=("-g",), build_id=BUILD_ID, units=None):
    units = units or UNITS
    (folder / "kernel/sched").mkdir(parents=True, exist_ok=True)
    for name, text in units.items():
        (folder / f"kernel/{name}.c").write_text(text)
    sources = [f"kernel/{name}.c" for name in units]
    linker = [f"-Wl,--build-id=0x{build_id}"] if build_id else ["-Wl,--build-id=none"]
    subprocess.run(
        ["clang", *flags, "-shared", "-nostdlib", "-fPIC", *linker, "-o", "vmlinux", *sources], cwd=folder, check=True
    )
    return folder / "vmlinux"


def notes(build_id):
    """As /sys/kernel/notes has them: another note first."""
    xen = struct.pack("<III4sI", 4, 4, 3, b"Xen\0", 7)
    return xen + struct.pack("<III4s", 4, 20, 3, b"GNU\0") + bytes.fromhex(build_id)


@pytest.fixture
def running(tmp_path, monkeypatch):
    """A machine whose kernel, a 6.1, has BUILD_ID, no vmlinux installed, and an empty cache."""
    (tmp_path / "notes").write_bytes(notes(BUILD_ID))
    monkeypatch.setattr(dwarf, "NOTES", tmp_path / "notes")
    monkeypatch.setattr(dwarf, "candidates", lambda: iter(()))
    monkeypatch.setattr(dwarf.host, "series", lambda: (6, 1))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("version", ["-gdwarf-4", "-gdwarf-5"])
def test_types_are_what_the_compiler_laid_out(tmp_path, version):
    types = dwarf.read(link(tmp_path, (version,)))
    assert types.members["task_struct"] == {
        "thread_info": (0, 16),
        "__state": (16, 4),
        "prio": (24, 4),
        "policy": (20, 4),
        "migration_disabled": (28, 4),
        "se": (64, 128),
        "tasks": (192, 16),
        "comm": (208, 16),
        "last_wakee": (224, 8),
        "wake_cpu": (264, 4),
        "pid": (268, 4),
        "wakee_flips": (272, 4),
        "cpus_ptr": (280, 8),
    }
    assert types.members["sched_avg"] == {"load_avg": (8, 8), "util_avg": (16, 4)}
    assert types.members["sched_entity"] == {"sched_delayed": (3, 1), "avg": (64, 24)}
    assert types.sizes["task_struct"] == 320
    assert "pcpu_hot" not in types.members
    assert types.flags == {"BALANCE_NEWIDLE": 0, "BALANCE_EXEC": 1, "BALANCE_FORK": 2, "SHARE_LLC": 9}
    assert types.enumerators == {"CPUHP_AP_ACTIVE": 235}
    assert types.functions == {"select_task_rq_fair": 3}
    assert types.tracepoints == {"sched_switch": 4}
    assert not types.btf


def test_types_are_kept_by_build_id(running):
    vmlinux = link(running)
    first = dwarf.running_kernel(vmlinux)
    vmlinux.unlink()
    assert dwarf.running_kernel() == first
    shutil.rmtree(running / "cache")
    with pytest.raises(KernelError, match=f"no vmlinux of build id {BUILD_ID} is installed: install"):
        dwarf.running_kernel()


def test_an_installed_vmlinux_is_found_by_its_build_id(running, monkeypatch):
    other, right = running / "other", running / "right"
    paths = [link(other, build_id="ff" * 20), link(right)]
    monkeypatch.setattr(dwarf, "candidates", lambda: iter(paths))
    assert dwarf.running_kernel().origin == str(right / "vmlinux")


def cut(path, build_id=BUILD_ID):
    whole = link(path, build_id=build_id).read_bytes()
    (path / "vmlinux").write_bytes(whole[: len(whole) // 2])


UNFIT = {
    "text": lambda path: (path / "vmlinux").write_text("of another kind"),
    "empty": lambda path: (path / "vmlinux").touch(),
    "directory": lambda path: (path / "vmlinux").mkdir(),
    "gone": lambda path: (path / "vmlinux").symlink_to("nowhere"),
    "truncated": cut,
    "stripped": lambda path: link(path, flags=()),
    "without build id": lambda path: link(path, build_id=None),
    "of another build": lambda path: link(path, build_id="ff" * 20),
    "DWARF of other files": lambda path: link(path, units={**UNITS, "sched/fair": "int x;"}),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_candidate_does_not_end_the_search(running, monkeypatch, kind):
    unfit = running / "unfit"
    unfit.mkdir()
    UNFIT[kind](unfit)
    paths = [unfit / "vmlinux"]
    monkeypatch.setattr(dwarf, "candidates", lambda: iter(paths))
    with pytest.raises(
        KernelError, match=f"no vmlinux of build id {BUILD_ID} is installed: install linux-.*--vmlinux"
    ) as e:
        dwarf.running_kernel()
    assert (f"passed over: {paths[0]}" in str(e.value)) == (kind != "of another build")
    paths.append(link(running / "right"))
    assert dwarf.running_kernel().origin == str(running / "right/vmlinux")


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_vmlinux_is_refused_by_name_with_the_remedy(running, kind):
    UNFIT[kind](running)
    with pytest.raises(
        KernelError, match=f"^{running}/vmlinux (is|has|cannot) .* give (another --|the )vmlinux"
    ) as error:
        dwarf.running_kernel(running / "vmlinux")
    assert "\n" not in str(error.value)
    assert not (running / "cache").exists()


def test_candidates_begin_with_the_running_release(tmp_path, monkeypatch):
    monkeypatch.setattr(dwarf.platform, "release", lambda: "6.1.0")
    for name in (
        "usr/lib/debug/boot/vmlinux-5.10.0",
        "usr/lib/debug/boot/vmlinux-6.1.0",
        "lib/modules/x/build/vmlinux",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(p.relative_to(tmp_path)) for p in dwarf.candidates(tmp_path)]
    assert found[0] == "usr/lib/debug/boot/vmlinux-6.1.0"
    assert found[-1] == "lib/modules/x/build/vmlinux"


def test_another_build_is_refused_with_both_ids(running):
    with pytest.raises(KernelError, match=f"its build id is {'ab' * 20}, the kernel's {BUILD_ID}; give the vmlinux"):
        dwarf.running_kernel(link(running, build_id="ab" * 20))


def test_a_vmlinux_without_dwarf_is_refused(running):
    with pytest.raises(KernelError, match=r"has no DWARF \(it was stripped, .* or give another --vmlinux"):
        dwarf.running_kernel(link(running, ()))


def test_dwarf_of_something_else_is_refused(running):
    with pytest.raises(KernelError, match=r"not of the scheduler .* or give another --vmlinux"):
        dwarf.running_kernel(link(running, units={**UNITS, "sched/fair": "int x;"}))


@pytest.mark.parametrize(
    ("part", "text", "absent"),
    [
        ("sched/fair", FAIR.replace("select_task_rq_fair", "pick"), "no select_task_rq_fair"),
        ("sched/fair", FAIR.replace("wake_cpu", "woken"), "no task_struct.wake_cpu"),
        ("sched/core", "int x;", "no btf_trace_sched_switch"),
        ("sched/build_utility", "int x;", "no SD_SHARE_LLC"),
        ("sched/build_utility", TOPOLOGY.replace("FORK", "SPOON"), "no SD_BALANCE_FORK"),
        ("cpu", "int x;", "no CPUHP_AP_ACTIVE"),
    ],
)
def test_incomplete_dwarf_is_refused_and_not_kept(running, part, text, absent):
    vmlinux = link(running, units={**UNITS, part: text})
    with pytest.raises(KernelError, match=rf"has damaged or incomplete DWARF \({absent}\): reinstall linux-image"):
        dwarf.running_kernel(vmlinux)
    assert not (running / "cache").exists()


@pytest.mark.parametrize("series", [(5, 3), (5, 9)])
def test_what_old_kernels_never_had_is_not_missed(running, monkeypatch, series):
    """Domain flags were macros before 5.10, tracepoints no types before 5.5."""
    monkeypatch.setattr(dwarf.host, "series", lambda: series)
    types = dwarf.running_kernel(
        link(running, units={**UNITS, "sched/build_utility": "int x;", "sched/core": "int y;"})
    )
    assert (types.flags, types.tracepoints) == ({}, {})
    assert dwarf.running_kernel() == types


def test_a_kernel_too_old_is_not_told_that_its_dwarf_is_damaged(running, monkeypatch):
    monkeypatch.setattr(dwarf.host, "series", lambda: (4, 19))
    units = {**UNITS, "sched/build_utility": "int x;", "sched/fair": FAIR.replace("cpus_ptr", "cpus_allowed")}
    vmlinux = link(running, units=units)
    with pytest.raises(KernelError, match=r"kernels before 5\.3 are not supported"):
        plan(kernel_types(vmlinux))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.write_text("text"), "is not a whole ELF file"),
        (lambda path: path.write_bytes(b"\x7fELF"), "is not a whole ELF file"),
    ],
)
def test_what_is_no_vmlinux_is_one_line(tmp_path, make, words):
    path = tmp_path / "file"
    make(path)
    with pytest.raises(KernelError, match=words):
        dwarf.build_id(path)


def test_no_build_id_is_one_line(tmp_path):
    with pytest.raises(KernelError, match="has no build id"):
        dwarf.build_id(link(tmp_path, build_id=None))


@pytest.mark.parametrize("content", [None, b"", notes(BUILD_ID)[:20], notes(BUILD_ID)[:-1], b"\xff" * 64])
def test_a_kernel_that_gives_no_build_id_is_one_line_with_the_remedy(running, content):
    (running / "notes").unlink()
    if content is not None:
        (running / "notes").write_bytes(content)
    for vmlinux in (None, running / "vmlinux"):
        with pytest.raises(KernelError, match=r"gives no build id, .*: mount sysfs on /sys, or boot a kernel"):
            dwarf.running_kernel(vmlinux)


SECTIONS = (".debug_info", ".debug_abbrev", ".debug_str", ".debug_str_offsets", ".debug_line_str")
DAMAGES = {
    "zeros": lambda size: bytes(size),
    "ones": lambda size: b"\xff" * size,
    "letters": lambda size: b"A" * size,
    "random": lambda size: Random(size).randbytes(size),
}


@pytest.fixture(scope="module", params=["-gdwarf-4", "-gdwarf-5"])
def sound(request, tmp_path_factory):
    """A whole vmlinux: its bytes, and where its sections of DWARF are."""
    path = link(tmp_path_factory.mktemp("sound"), (request.param,))
    with path.open("rb") as file:
        found = [ELFFile(file).get_section_by_name(name) for name in SECTIONS]
        return path.read_bytes(), {s.name: (s["sh_offset"], s["sh_size"]) for s in found if s}


def take(folder, data):
    """The types that data gives as a vmlinux, or None if it is refused in one line; what is kept of it is whole."""
    vmlinux = folder / "vmlinux"
    vmlinux.write_bytes(data)
    try:
        types = dwarf.running_kernel(vmlinux)
    except KernelError as error:
        said = str(error)
    else:
        assert dwarf._kept(BUILD_ID) == types
        shutil.rmtree(folder / "cache")
        return types
    assert re.fullmatch(rf"{vmlinux} .*(give another --vmlinux|give the vmlinux of this very build)", said)
    assert dwarf._kept(BUILD_ID) is None
    return None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", [(0, 1), (0, 0.5), (0.5, 1), (0.25, 0.5)])
def test_a_damaged_section_is_refused_or_harmless(running, sound, part, damage):
    data, places = sound
    whole = take(running, data)
    assert whole is not None
    for offset, size in places.values():
        begin, end = (offset + int(size * share) for share in part)
        types = take(running, data[:begin] + DAMAGES[damage](end - begin) + data[end:])
        assert types in (None, whole)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1), junk=st.binary(min_size=1, max_size=64), section=st.sampled_from(SECTIONS))
def test_no_damage_of_dwarf_is_a_traceback(running, sound, where, junk, section):
    data, places = sound
    offset, size = places.get(section, (0, len(data)))
    at = offset + int(where * (size - 1))
    take(running, data[:at] + junk + data[at + len(junk) :])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_vmlinux_is_refused(running, sound, share):
    data, _ = sound
    assert take(running, data[: int(len(data) * share)]) is None


def damaged_json(value):
    """Each JSON value that differs from this one in one place, where it has something of another kind."""
    yield from ([], {}, None, 5, -1, 1.5, 10**30, "a", [5], {"a": 5})
    if isinstance(value, dict):
        yield {**value, "more": 5}
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: other} for other in damaged_json(inner))
    elif isinstance(value, list):
        yield [*value, 5]
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in damaged_json(inner))


def test_kept_types_of_another_shape_are_not_taken(running):
    whole = dwarf.running_kernel(link(running))
    file = dwarf._file(BUILD_ID)
    values = list(damaged_json(json.loads(file.read_text())))
    taken = 0
    for value in values:
        file.write_text(json.dumps(value))
        types = dwarf._kept(BUILD_ID)
        if types is not None:  # another number, or a table without what some kernels lack
            taken += 1
            assert json.loads(json.dumps(asdict(types))) == {**asdict(Types("")), **value}
            assert source(types)
            plan(types, "tracepoint")
    assert len(values) > 500
    assert taken < len(values) / 2
    for text in ("{}", "[]", "null", "5", "", "{", '{"members": {}}', '{"members": {"a": 5}}', "[" * 100_000, "\0\xff"):
        file.write_text(text)
        assert dwarf._kept(BUILD_ID) is None
        assert dwarf.running_kernel(running / "vmlinux") == whole
