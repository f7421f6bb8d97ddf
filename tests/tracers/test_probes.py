# SPDX-License-Identifier: GPL-2.0-only
"""Which programs a kernel can run, from its types and symbols alone."""

import pytest
from wakescope.tracers import bcc, host, probes
from wakescope.tracers.offsets import Types

SYMBOLS = {"runqueues": 1, "__per_cpu_offset": 2, "select_task_rq_fair": 3, "task_numa_fault": 4}
SYMBOLS |= {"task_numa_find_cpu": 5, bcc.BY_HAND: 6}
FUNCTIONS = {"select_task_rq_fair": 3, "task_numa_fault": 4, "task_numa_find_cpu": 3}


def planned(monkeypatch, symbols=SYMBOLS, functions=FUNCTIONS, loader="libbpf"):
    monkeypatch.setattr(host, "symbols", lambda: symbols)
    types = Types(
        "made up",
        flags={"SHARE_LLC": 9, "BALANCE_EXEC": 2, "BALANCE_FORK": 3},
        functions=functions,
        btf=True,
        typed=True,
        per_cpu=True,
    )
    return probes.plan(types, "decision", loader)


def test_searches_by_numa_balancing_are_hooked_where_the_function_stands_for_itself(monkeypatch):
    assert "numa_find" in planned(monkeypatch).programs


@pytest.mark.parametrize("lacking", ["symbol", "type"])
def test_an_inlined_function_is_named(monkeypatch, lacking):
    gone = {"task_numa_find_cpu"}
    symbols = {k: v for k, v in SYMBOLS.items() if lacking != "symbol" or k not in gone}
    functions = {k: v for k, v in FUNCTIONS.items() if lacking != "type" or k not in gone}
    made = planned(monkeypatch, symbols, functions)
    assert "numa_find" not in made.programs
    assert made.refused["numa_find"].startswith("task_numa_find_cpu is not a function of its own")


def test_bcc_does_without_it(monkeypatch):
    made = planned(monkeypatch, loader="bcc")
    assert "numa_find" not in made.programs
    assert made.refused["numa_find"] == "kretprobes do not see a function's arguments"
