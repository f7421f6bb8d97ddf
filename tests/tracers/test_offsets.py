# SPDX-License-Identifier: GPL-2.0-only
import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from wakescope.model.kernels import NEEDS
from wakescope.tracers import offsets
from wakescope.tracers.offsets import Types

KERNEL_H = (offsets.HERE / "kernel.h").read_text()


def test_every_structure_of_kernel_h_is_understood():
    """lay_out() rewrites what it recognises: a structure it does not would be compiled with made-up offsets."""
    declared = re.findall(r"^struct (\w+) \{$", KERNEL_H, re.MULTILINE)
    laid_out = offsets.lay_out(KERNEL_H, Types("none"))
    assert len(declared) > 15
    for name in declared:
        assert f"struct {name} {{ union {{" in laid_out


def test_wanted_merges_flavours_and_adds_what_the_model_needs():
    wanted = offsets.wanted()
    assert {"state", "__state", "cpu", "thread_info"} <= set(wanted["task_struct"])
    assert "h_nr_idle" in wanted["cfs_rq"]
    assert not [name for name in wanted if "___" in name]
    for member in NEEDS.values():
        owner, name = member.split(".")
        assert name in wanted[owner]


def test_flag_bits_take_their_newest_names():
    old = {"__SD_BALANCE_FORK": 2, "__SD_SHARE_PKG_RESOURCES": 9, "__SD_FLAG_CNT": 14}
    assert offsets.flag_bits(old) == {"BALANCE_FORK": 2, "SHARE_LLC": 9}


SOURCE = """
struct inner {
	unsigned long load;
	int gone;
};

struct lost {
	unsigned int a;
};

struct outer___v1 {
	struct inner avg;
	unsigned int flags;
	int node;
	char *name;
	char comm[16];
	volatile long old;
	struct lost stats;
	struct inner *missing;
};
"""
PLACES = {
    "inner": {"load": (8, 8)},
    "outer": {"avg": (64, 24), "flags": (3, 1), "node": (10, 2), "name": (16, 8), "comm": (30, 16)},
}
CHECK = """
#include <stdio.h>
#include <stddef.h>
#define ABSENT(x) __builtin_types_compatible_p(typeof(x), __int128)
int main(void)
{
	struct outer___v1 *p = NULL;
	printf("%zu %zu %zu ", offsetof(struct outer___v1, avg.load), offsetof(struct outer___v1, flags), sizeof(p->flags));
	printf("%zu %zu ", offsetof(struct outer___v1, node), sizeof(p->node));
	printf("%zu %zu %d ", sizeof(p->comm), sizeof(*p), (typeof(p->node))-1 < 0);
	printf("%d %d %d ", ABSENT(p->avg.gone), ABSENT(p->old), ABSENT(p->stats.a));
	printf("%d %d", ABSENT(p->missing), ABSENT(p->comm));
}
"""


def test_laid_out_structures_are_what_the_compiler_sees(tmp_path):
    types = Types("test", sizes={"inner": 24, "outer": 200}, members=PLACES)
    text = "typedef unsigned char __u8; typedef short __s16; typedef unsigned long __u64;\n"
    (tmp_path / "check.c").write_text(text + offsets.lay_out(SOURCE, types) + CHECK)
    subprocess.run(["clang", "-o", tmp_path / "check", tmp_path / "check.c"], check=True)
    said = subprocess.run([tmp_path / "check"], check=True, capture_output=True, text=True).stdout
    assert said == "72 3 1 10 2 16 200 1 1 1 1 1 0"


def test_the_running_kernel_answers():
    if not offsets.VMLINUX.exists():
        pytest.skip("this kernel has no BTF")
    types = offsets.kernel_types()
    assert types.btf
    assert types.has("task_struct.wakee_flips")
    assert not types.has("task_struct.no_such_member")
    assert types.members["task_struct"]["comm"][1] == 16
    assert types.members["task_struct"]["real_parent"][1] == ctypes.sizeof(ctypes.c_void_p)
    assert types.functions["select_task_rq_fair"] in (3, 4)
    assert {"BALANCE_FORK", "SHARE_LLC"} <= set(types.flags)
    assert 0 < types.enumerators["CPUHP_AP_ACTIVE"] < 1000
    assert types.origin == str(Path("/sys/kernel/btf/vmlinux"))


@pytest.mark.parametrize(
    ("series", "exec_bit", "llc_bit", "numa_bit"),
    [((5, 3), 2, 9, 14), ((5, 7), 2, 9, 14), ((5, 8), 1, 8, 13), ((5, 9), 1, 8, 13)],
)
def test_domain_flags_while_they_were_macros(series, exec_bit, llc_bit, numa_bit):
    """SD_BALANCE_EXEC, SD_SHARE_PKG_RESOURCES and SD_NUMA: 0x4, 0x200, 0x4000 in v5.4, 0x2, 0x100, 0x2000 in v5.8."""
    flags = offsets.flags_before_5_10(series)
    assert (flags["BALANCE_EXEC"], flags["SHARE_LLC"], flags["NUMA"]) == (exec_bit, llc_bit, numa_bit)
    assert sorted(flags.values()) == list(range(numa_bit + 1))


@pytest.mark.parametrize("series", [(4, 19), (5, 2), (5, 10), (6, 12)])
def test_no_numbers_are_made_up_for_other_kernels(series):
    assert offsets.flags_before_5_10(series) == {}
