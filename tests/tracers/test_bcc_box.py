# SPDX-License-Identifier: GPL-2.0-only
"""The loader bcc on stock kernels in the box: record for record what libbpf says, and recording where BTF is hidden."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wakescope
from wakescope.testbox.apt import ArchiveError
from wakescope.testbox.kernels import find
from wakescope.trace import Trace
from wakescope.tracers import bcc, bcc_headers

from .bcc_pairs import agree

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(wakescope.__file__).parents[1])}

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU on this host"),
]

SCRIPT = """
set -e
cd /out
python bcc_pairs.py --decision --20000 hackbench -g 2 -l $1 > pairs.json
python -m wakescope topology --json > topology.json
python keep_types.py
mount -t tmpfs none /sys/kernel/btf
python -m wakescope doctor --json > doctor.json
python -m wakescope record -o hidden.wake -- hackbench -g 2 -l 50
"""

# Stands in for a vmlinux with DWARF, which is too large to fetch for a test: that both say the same is measured.
KEEP_TYPES = """
from dataclasses import replace
from wakescope.tracers import dwarf, offsets
types = replace(offsets.kernel_types(), origin="vmlinux", btf=False, typed=False, per_cpu=False)
dwarf._keep(dwarf._notes_build_id(dwarf.NOTES.read_bytes()), types)
"""


@pytest.fixture(scope="module", params=[("6.1", 50), ("6.12", 300)], ids=lambda p: p[0])
def out(request, tmp_path_factory):
    """What SCRIPT left behind in a box of one kernel."""
    name, messages = request.param
    try:
        find(name, print)
    except ArchiveError as error:
        pytest.skip(str(error))
    try:
        bcc.module()
        with bcc_headers.header_tree():
            pass
    except bcc.KernelError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("box")
    shutil.copy(HERE / "bcc_pairs.py", folder)
    (folder / "keep_types.py").write_text(KEEP_TYPES)
    script = SCRIPT.replace("python ", f"{sys.executable} ").replace("$1", str(messages))
    script = f"export PYTHONPATH={shlex.quote(ENVIRONMENT['PYTHONPATH'])}\n{script}"
    box = [sys.executable, "-m", "wakescope", "box", "run", "--kernel", name, "--out", str(folder), "--timeout", "900"]
    done = subprocess.run(
        [*box, "--", "sh", "-c", script], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


def test_both_loaders_say_the_same_of_every_decision(out):
    said = json.loads((out / "pairs.json").read_text())
    assert said["tier"] == "decision"
    agree(said)


def test_a_kernel_without_btf_is_recorded_through_kept_types(out):
    trace = Trace.open(out / "hidden.wake")
    assert trace.meta["loader"] == "bcc, probe reads"
    assert trace.meta["loader_why"] == "types are from vmlinux, not from BTF"
    assert trace.meta["tier"] == "decision"
    wakeups = trace.array("wakeups")
    assert (wakeups["outcome"] == 0).sum() > 1_000
    assert (wakeups["context"] < 4).all()
    tasks = trace.df("tasks")
    assert {1, 2} <= set(tasks["pid"])
    assert (tasks["comm"].astype(str) != "").all()


def test_the_topology_is_the_one_libbpf_reads(out):
    through_btf = json.loads((out / "topology.json").read_text())
    assert json.loads((out / "hidden.wake" / "topology.json").read_text()) == through_btf
    assert len(through_btf["cpus"]) == 8


def test_doctor_says_why(out):
    said = json.loads((out / "doctor.json").read_text())
    checks = {check["name"]: check for check in said["checks"]}
    assert said["can_record"]
    assert checks["loader"]["found"] == "bcc"
    assert checks["loader"]["remedy"] == "types are from vmlinux, not from BTF"
