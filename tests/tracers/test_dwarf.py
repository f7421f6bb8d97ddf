# SPDX-License-Identifier: GPL-2.0-only
"""DWARF of a small vmlinux made here; that a real one gives what BTF gives is measured in docs/loaders.md."""

import shutil
import struct
import subprocess

import pytest
from wakescope.errors import KernelError
from wakescope.tracers import dwarf

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
} task;
struct rq;
int select_task_rq_fair(struct task_struct *p, int prev_cpu, int wake_flags) { return prev_cpu; }
"""
CORE = """
struct task_struct;
typedef void (*btf_trace_sched_switch)(void *, _Bool, struct task_struct *, struct task_struct *, unsigned int);
btf_trace_sched_switch handler;
"""
TOPOLOGY = """
enum { __SD_BALANCE_NEWIDLE, __SD_BALANCE_EXEC, __SD_SHARE_PKG_RESOURCES = 9, __SD_FLAG_CNT } flags;
"""
CPU = "enum cpuhp_state { CPUHP_INVALID = -1, CPUHP_OFFLINE, CPUHP_AP_ACTIVE = 235 } state;"
UNITS = {"sched/fair": FAIR, "sched/core": CORE, "sched/build_utility": TOPOLOGY, "cpu": CPU}

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


def link(folder, flags=("-g",), build_id=BUILD_ID):
    (folder / "kernel/sched").mkdir(parents=True, exist_ok=True)
    for name, text in UNITS.items():
        (folder / f"kernel/{name}.c").write_text(text)
    sources = [f"kernel/{name}.c" for name in UNITS]
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
    """A machine whose kernel has BUILD_ID, no vmlinux installed, and an empty cache."""
    (tmp_path / "notes").write_bytes(notes(BUILD_ID))
    monkeypatch.setattr(dwarf, "NOTES", tmp_path / "notes")
    monkeypatch.setattr(dwarf, "candidates", lambda: iter(()))
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
    }
    assert types.members["sched_avg"] == {"load_avg": (8, 8), "util_avg": (16, 4)}
    assert types.members["sched_entity"] == {"sched_delayed": (3, 1), "avg": (64, 24)}
    assert types.sizes["task_struct"] == 320
    assert "rq" not in types.members
    assert types.flags == {"BALANCE_NEWIDLE": 0, "BALANCE_EXEC": 1, "SHARE_LLC": 9}
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
    with pytest.raises(KernelError, match=r"has no DWARF: it was stripped, or built without CONFIG_DEBUG_INFO"):
        dwarf.running_kernel(link(running, ()))


def test_dwarf_of_something_else_is_refused(running, monkeypatch):
    monkeypatch.setitem(UNITS, "sched/fair", "int x;")
    with pytest.raises(KernelError, match="not of the scheduler"):
        dwarf.running_kernel(link(running))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot be read"),
        (lambda path: path.write_text("text"), "is not an ELF file"),
        (lambda path: path.write_bytes(b"\x7fELF"), "is not an ELF file"),
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
