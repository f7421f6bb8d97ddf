# SPDX-License-Identifier: GPL-2.0-only
"""tracers/host.py: what the running kernel is, and what there is beside it."""

import subprocess

import pytest
from wakescope.tracers import host


def test_perf_is_a_program_that_runs_on_this_kernel():
    """Not the wrapper of Ubuntu that exits with 2 on a kernel its package did not come with."""
    program = host.perf()
    if program is None:
        pytest.skip("perf is not installed")
    assert subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
