# SPDX-License-Identifier: GPL-2.0-only
import pytest
from wakescope.tests.maketrace import make_trace


@pytest.fixture
def trace(tmp_path):
    """A maker of traces: trace(machine=…, wakeups=[…], …); the four usual tables are there, empty if not given."""

    def make(machine=None, meta=None, **tables):
        made = {"wakeups": [], "switches": [], "tasks": [], "migrations": [], **tables}
        return make_trace(tmp_path / f"t{len(list(tmp_path.iterdir()))}.wake", made, machine, **(meta or {}))

    return make
