# SPDX-License-Identifier: GPL-2.0-only
"""Boxes that boot: what goes in comes out, the machine is the one asked for, and nothing is left behind.

Kernels are fetched into the cache if they are not there.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wakescope
from wakescope.testbox import initrd, qemu, vng
from wakescope.testbox.apt import ArchiveError
from wakescope.testbox.guest import Box
from wakescope.testbox.initrd import BoxSetupError
from wakescope.testbox.kernels import Kernel, find, from_path
from wakescope.testbox.topology import parse, parse_cpus

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU on this host"),
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(wakescope.__file__).parents[1])}
LINE = [sys.executable, "-m", "wakescope", "box"]


@pytest.fixture(scope="session")
def kernel() -> Callable[[str], Kernel]:
    """Finds a kernel, fetching it if need be; skips the test where none can be had."""

    def get(name: str) -> Kernel:
        try:
            return find(name, print)
        except ArchiveError as error:
            pytest.skip(str(error))

    return get


@pytest.fixture(scope="session", autouse=True)
def default_kernel(kernel: Callable[[str], Kernel]) -> Kernel:
    """The kernel of tests that do not care, fetched before any of them runs."""
    return kernel("6.12")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`wakescope box run` to its end."""
    return subprocess.run([*LINE, "run", *words], capture_output=True, text=True, env=ENVIRONMENT, check=False)


def test_a_command_in_a_box_is_as_one_outside(tmp_path: Path) -> None:
    """Words, streams, exit status, working directory, settings, /out; and the host's files stay as they were."""
    (tmp_path / "kept").write_text("the host's\n")
    script = """
        printf '%s\\n' "$@"; echo complaint >&2
        pwd
        cat kept; echo "the guest's" > kept; cat kept; rm -f kept; touch "$1" /new-file
        cat /proc/sys/kernel/sched_schedstats /proc/sys/kernel/numa_balancing /proc/sys/kernel/ostype
        tr ' ' '\\n' < /sys/kernel/debug/sched/features | grep -E 'WA_IDLE|SIS_UTIL'
        echo brought back > /out/file; mkdir /out/folder; id -u > /out/folder/id
        ls /sys/kernel/btf/vmlinux /sys/kernel/tracing/trace /sys/fs/bpf -d
        exit 42
    """
    words = ["a b", "$(reboot)", "*", "it's", ""]
    line = [*LINE, "run", "--features", "NO_WA_IDLE,NO_SIS_UTIL", "--sysctl", "kernel.sched_schedstats=1"]
    line += ["--out", "out", "--", "sh", "-c", script, "sh", *words]
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=False)
    assert done.returncode == 42, done.stderr
    assert done.stderr == "complaint\n"
    assert done.stdout.splitlines() == [
        *words,
        str(tmp_path),
        "the host's",
        "the guest's",
        *("1", "1", "Linux"),
        *("NO_SIS_UTIL", "NO_WA_IDLE"),
        *("/sys/fs/bpf", "/sys/kernel/btf/vmlinux", "/sys/kernel/tracing/trace"),
    ]
    assert (tmp_path / "out/file").read_text() == "brought back\n"
    assert (tmp_path / "out/folder/id").read_text() == "0\n"
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "out"}
    assert (tmp_path / "kept").read_text() == "the host's\n"
    assert not Path("/new-file").exists()


PRINT_MACHINE = r"""
cd /sys/devices/system
echo "online all $(cat cpu/online)"
for cpu in cpu/cpu[0-9]*; do
    [ -e $cpu/topology ] || continue
    echo "core ${cpu#cpu/cpu} $(cat $cpu/topology/thread_siblings_list)"
    echo "package ${cpu#cpu/cpu} $(cat $cpu/topology/core_siblings_list)"
    echo "llc ${cpu#cpu/cpu} $(cat $cpu/cache/index3/shared_cpu_list)"
done
for node in node/node[0-9]*; do
    echo "node ${node#node/node} $(cat $node/cpulist)"
    echo "distance ${node#node/node} $(cat $node/distance)"
done
cat /proc/schedstat
"""
MACHINES = [
    ("5.10", "2s2c2t"),
    ("6.12", "2s4c2t"),
    ("7", "1s8c1t"),
    ("6.1", "uneven"),
    ("5.10", "llcs"),
    ("7", "snc"),
    ("6.12", "offline"),
    ("6.1", "offline0"),
]


@pytest.mark.parametrize(("version", "name"), MACHINES)
def test_the_guest_is_the_machine_asked_for(version: str, name: str, kernel: Callable[[str], Kernel]) -> None:
    shape = parse(name)
    kernel(version)
    done = run("--kernel", version, "--topology", name, "--", "sh", "-c", PRINT_MACHINE)
    assert done.returncode == 0, done.stderr
    online = set(range(shape.cpus)) - set(shape.offline)
    seen: dict[tuple[str, str], str] = {}
    spans: dict[int, list[set[int]]] = {}
    for line in done.stdout.splitlines():
        word, *rest = line.split()
        if re.fullmatch(r"cpu\d+", word):
            spans[cpu := int(word[3:])] = []
        elif word.startswith("domain"):
            mask = next(part for part in rest if re.fullmatch(r"[0-9a-f,]+", part))  # a name precedes it since v6.15
            bits = int(mask.replace(",", ""), 16)
            spans[cpu].append({number for number in range(shape.cpus) if bits >> number & 1})
        elif word in ("online", "core", "package", "llc", "node", "distance"):
            seen[word, rest[0]] = " ".join(rest[1:])

    assert set(parse_cpus(seen["online", "all"], shape.cpus + 1)) == online
    for word, groups in [("core", shape.core_cpus), ("llc", shape.llc_cpus), ("package", shape.package_cpus)]:
        for group in groups:
            for cpu in online & set(group):
                assert set(parse_cpus(seen[word, str(cpu)], shape.cpus + 1)) == online & set(group)
    for node, cpus in enumerate(shape.node_cpus):
        assert set(parse_cpus(seen["node", str(node)], shape.cpus + 1)) == online & set(cpus)
        assert tuple(map(int, seen["distance", str(node)].split())) == shape.distances[node]
    assert set(spans) == online
    for cpu, domains in spans.items():  # what the scheduler made of it: SMT, LLC and the whole machine
        for groups in (shape.core_cpus, shape.llc_cpus, [list(online)]):
            span = next(online & set(group) for group in groups if cpu in group)
            assert len(span) == 1 or span in domains
        assert domains == sorted(domains, key=len)


def test_a_panic_shows_the_consoles_end() -> None:
    done = run("--topology", "1s1c1t", "--", "sh", "-c", "echo before; echo c > /proc/sysrq-trigger")
    assert done.returncode == 125
    assert done.stdout == "before\n"
    assert "end of the guest's console" in done.stderr
    assert "write_sysrq_trigger" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("panicked: sysrq triggered crash")


def test_time_that_is_up_ends_the_box() -> None:
    done = run("--topology", "1s1c1t", "--timeout", "0.5", "--", "true")
    assert done.returncode == 124
    assert "had not started its command after 0.5 s" in done.stderr


def test_a_feature_the_kernel_lacks_is_said() -> None:
    done = run("--topology", "1s1c1t", "--features", "NO_SUCH", "--", "echo", "not reached")
    assert done.returncode == 9
    assert done.stdout == ""
    assert "NO_SUCH: this kernel has no such feature; it has PLACE_LAG" in done.stderr


def test_through_virtme_ng_a_box_is_the_same(tmp_path: Path) -> None:
    try:
        vng.check_host()
    except BoxSetupError as error:
        pytest.skip(str(error))
    script = """
        printf '%s\\n' "$@"; echo complaint >&2
        cat /proc/sys/kernel/sched_schedstats
        cat /sys/devices/system/cpu/cpu5/topology/thread_siblings_list
        cat /sys/devices/system/node/node1/distance
        grep -o NO_SIS_UTIL /sys/kernel/debug/sched/features
        echo brought back > /out/file; touch /new-file
        exit 42
    """
    words = ["a b", "$(reboot)", "it's"]
    options = ["--via", "vng", "--distance", "21", "--features", "NO_SIS_UTIL", "--sysctl", "kernel.sched_schedstats=1"]
    done = run(*options, "--out", str(tmp_path / "out"), "--", "sh", "-c", script, "sh", *words)
    assert done.returncode == 42, done.stderr
    assert done.stdout.splitlines() == [*words, "1", "4-5", "21 10", "NO_SIS_UTIL"]
    assert "complaint" in done.stderr
    assert (tmp_path / "out/file").read_text() == "brought back\n"
    assert not Path("/new-file").exists()


def emulators(parent: int) -> list[int]:
    """Process ids of the QEMUs a process has started."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().startswith("qemu")]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_no_qemu_is_left(number: signal.Signals, status: int) -> None:
    line = [*LINE, "run", "--topology", "1s2c1t", "--", "sh", "-c", "echo up; sleep 600"]
    box = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    assert box.stdout is not None
    assert box.stdout.readline() == "up\n"
    (emulator,) = emulators(box.pid)
    watched = os.pidfd_open(emulator)
    box.send_signal(number)
    assert box.wait() == status
    assert select.select([watched], [], [], 30)[0], "QEMU outlived its box"
    os.close(watched)
    box.stdout.close()


def test_two_boxes_at_once_do_not_meet(tmp_path: Path) -> None:
    script = "echo $0 > /tmp/mine; sleep 1; cat /tmp/mine; cp /tmp/mine /out/mine; nproc"
    boxes = {
        name: subprocess.Popen(
            [*LINE, "run", "--topology", name, "--out", tmp_path / name, "--", "sh", "-c", script, name],
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for name in ("1s2c1t", "1s1c2t", "1s3c1t")
    }
    for name, box in boxes.items():
        said, _ = box.communicate()
        assert box.returncode == 0
        assert said.split() == [name, str(parse(name).cpus)]
        assert (tmp_path / name / "mine").read_text() == f"{name}\n"


def test_a_shell_talks_to_the_terminal() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(ENVIRONMENT, SHELL="/bin/sh")
        os.execv(LINE[0], [*LINE, "shell", "--topology", "1s1c1t"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    heard = b""

    def hear(wanted: bytes) -> None:
        nonlocal heard
        while wanted not in heard:
            assert select.select([terminal], [], [], 120)[0], f"waiting for {wanted!r}, heard {heard!r}"
            heard += os.read(terminal, 4096).replace(b"\r", b"")
        heard = heard.partition(wanted)[2]

    hear(b"# ")
    os.write(terminal, b"stty size; tty\r")
    hear(b"33 101\n/dev/hvc0\n")
    os.write(terminal, b"sh -c 'echo asleep; exec sleep 600'\r")
    hear(b"asleep\n")
    os.write(terminal, b"\x03")  # to the guest's sleep, not to the box
    hear(b"# ")
    os.write(terminal, b"exit 7\r")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os.close(terminal)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder every user may look into (pytest's own are closed to others)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="every box of an ordinary user's test run is one of an ordinary user")
def test_an_ordinary_user_has_boxes_too(default_kernel: Kernel, public: Path) -> None:
    """Fork and become nobody here: the interpreter itself may lie where nobody may look."""
    tree = public / "kernel"
    (tree / "boot").mkdir(parents=True)
    shutil.copy(default_kernel.image, tree / "boot/vmlinuz-x")
    modules = tree / "lib/modules" / default_kernel.release / "kernel"
    modules.mkdir(parents=True)
    assert default_kernel.modules is not None
    for name, image in initrd.needed_modules(default_kernel.modules).items():
        (modules / f"{name}.ko").write_bytes(image)
    out = public / "out"
    out.mkdir()
    os.chown(out, 65534, 65534)
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.chdir("/")
            command = ("sh", "-c", "id -u > /out/id; cat /etc/shadow > /out/shadow; exit 5")
            box = Box(from_path(tree), parse("1s1c1t"), command, memory=1024, out=out)
            said = bytearray()
            status = qemu.run(box, "tcg", said.extend, said.extend).verdict(box)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert (out / "id").read_text() == "0\n"
    assert (out / "id").stat().st_uid == 65534
    assert (out / "shadow").read_text() == "", "a file of the host that the user may not read was read"
