# SPDX-License-Identifier: GPL-2.0-only
"""tracers/host.py: what the running kernel is, and what there is beside it."""

import platform
import subprocess

import pytest
from wakescope.tracers import host


def test_perf_is_a_program_that_runs_on_this_kernel():
    """Not the wrapper of Ubuntu that exits with 2 on a kernel its package did not come with."""
    program = host.perf()
    if program is None:
        pytest.skip("perf is not installed")
    assert subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def test_ubuntus_version_names_the_stable_release(monkeypatch):
    signature = "Ubuntu 5.15.0-139.149~20.04.1-generic 5.15.178"
    monkeypatch.setattr(host, "read", {"/proc/version_signature": signature}.get)
    assert host.version() == f"{platform.version()} ({signature})"


def test_elsewhere_it_is_unames(monkeypatch):
    monkeypatch.setattr(host, "read", lambda path: None)
    assert host.version() == platform.version()
