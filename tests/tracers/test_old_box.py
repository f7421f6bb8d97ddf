# SPDX-License-Identifier: GPL-2.0-only
"""Kernels before 5.8 in the box: recorded by loader bcc, through perf buffers, with nothing made up."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wakescope
from wakescope.model.validate import validate
from wakescope.testbox.apt import ArchiveError
from wakescope.testbox.kernels import NoKernelError, find
from wakescope.topology import Topology
from wakescope.trace import Trace
from wakescope.tracers import bcc, bcc_headers

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(wakescope.__file__).parents[1])}

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU on this host"),
]

SCRIPT = """
set -e
cd /out
python keep_types.py
python old_kernel.py > old.json
python -m wakescope record -o /dev/shm/old.wake -- hackbench -g 2 -l 100
cp -r /dev/shm/old.wake .
"""

# 5.3 has no BTF. Its types are those of a vmlinux made from its source (docs/loaders.md), kept as if read before.
TYPES = HERE / "types-5.3.0-76-generic.json"
KEEP_TYPES = """
import json, platform
from pathlib import Path
from wakescope.tracers import dwarf, offsets
types = Path(f"types-{platform.release()}.json")
if types.exists():
    dwarf._keep(dwarf._notes_build_id(dwarf.NOTES.read_bytes()), offsets.Types(**json.loads(types.read_text())))
"""


@pytest.fixture(scope="module", params=["5.3", "5.4"])
def out(request, tmp_path_factory):
    """What SCRIPT left behind in a box of one kernel."""
    try:
        find(request.param, print)
        bcc.module()
        with bcc_headers.header_tree():
            pass
    except (ArchiveError, NoKernelError, bcc.KernelError) as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("box")
    shutil.copy(HERE / "old_kernel.py", folder)
    shutil.copy(TYPES, folder)
    (folder / "keep_types.py").write_text(KEEP_TYPES)
    script = SCRIPT.replace("python ", f"{sys.executable} ")
    script = f"export PYTHONPATH={shlex.quote(ENVIRONMENT['PYTHONPATH'])}\n{script}"
    box = [sys.executable, "-m", "wakescope", "box", "run", "--kernel", request.param, "--topology", "2s2c2t"]
    done = subprocess.run(
        [*box, "--out", str(folder), "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return request.param, folder


def test_it_is_recorded_whole(out):
    release, folder = out
    trace = Trace.open(folder / "old.wake")
    assert trace.meta["loader"] == "bcc, probe reads"
    assert ("not from BTF" if release == "5.3" else "by hand (before 5.10)") in trace.meta["loader_why"]
    assert trace.meta["tier"] == "decision"
    wakeups = trace.array("wakeups")
    assert (wakeups["outcome"] == 0).sum() > 5_000
    assert set(wakeups["cpu"]) == set(range(8))
    assert sum(ring["lost"] for ring in trace.meta["rings"] if ring["ring"] != "wakeup") == 0
    rings = [ring for ring in trace.meta["rings"] if ring["ring"] == "wakeup"]
    assert sum(ring["lost"] for ring in rings) < len(wakeups) / 1000  # those whose decision a kprobe missed
    for ring in rings:
        seq = wakeups["seq"][wakeups["cpu"] == ring["cpu"]]
        assert seq.tolist() == sorted(set(seq))
        assert len(seq) + ring["lost"] == ring["tried"]
    assert (wakeups["context"] < 4).all()
    assert wakeups["idle"].any()
    tasks = trace.df("tasks")
    assert {1, 2} <= set(tasks["pid"])
    exact = validate(trace).certainty["EXACT"]
    assert exact.agree == exact.decisions > 5_000


def test_domains_are_the_kernels_own(out):
    _, folder = out
    theirs = json.loads((folder / "old.json").read_text())["domains"]
    topology = Topology.load(folder / "old.wake" / "topology.json")
    bits = {name: bit for bit, name in enumerate(topology.flag_order)}
    assert len(theirs) == 8
    for cpu, levels in theirs.items():
        mine = sorted((d for d in topology.domains if d.cpu == int(cpu)), key=lambda d: d.level)
        assert [[sum(1 << bits[flag] for flag in d.flags), d.name] for d in mine] == levels


def test_what_found_no_room_is_counted_by_cpu(out):
    _, folder = out
    said = json.loads((folder / "old.json").read_text())
    assert said["rings"] == "PerfRing"
    assert sum(cpu["lost"] for cpu in said["lost"].values()) > 100
    for cpu in said["lost"].values():
        assert len(cpu["kept"]) + cpu["lost"] == cpu["tried"]
        assert cpu["kept"] == sorted(set(cpu["kept"]))
