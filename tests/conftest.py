# SPDX-License-Identifier: GPL-2.0-only
"""What tests share: whether this machine can record, and a recording made once per session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wakescope.trace import Trace
from wakescope.tracers import host

ROOT = Path(__file__).parent.parent
WAKESCOPE = [sys.executable, "-m", "wakescope"]


def pytest_configure():
    """A shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def can_record() -> bool:
    if os.geteuid() or not Path("/sys/kernel/btf/vmlinux").exists():
        return False
    done = subprocess.run([*WAKESCOPE, "doctor", "--json"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="session")
def live():
    """Skips a live test where the kernel refuses BPF; on a machine that can record it never does."""
    if not can_record():
        pytest.skip("this machine cannot record: see wakescope doctor")


@pytest.fixture(scope="session")
def perf():
    """The perf program; skips a test that compares with perf where there is none that knows tracepoints."""
    program = host.perf()
    if program is None:
        pytest.skip("perf is not installed")
    options = subprocess.run([program, "version", "--build-options"], capture_output=True, text=True, check=False)
    if re.search(r"libtraceevent: \[ OFF", options.stdout):
        pytest.skip("perf was built without tracepoints (Ubuntu 24.04 as released; its updates have them)")
    return program


@pytest.fixture(scope="session")
def hackbench_trace(live, tmp_path_factory):
    """A real recording of this kernel with over 50,000 placed wakeups: how many hackbench makes varies threefold."""
    path = tmp_path_factory.mktemp("live") / "hackbench.wake"
    run = ["hackbench", "-g", "2", "-l", "20000"]
    subprocess.run([*WAKESCOPE, "record", "-o", path, "--", *run], check=True, capture_output=True)
    return Trace.open(path)
