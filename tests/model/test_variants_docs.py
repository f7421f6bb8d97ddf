# SPDX-License-Identifier: GPL-2.0-only
"""The tables of docs/variants.md are what contrast says of the traces they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wakescope.model.contrast import contrast
from wakescope.model.variants import PATCHES, named
from wakescope.trace import Trace

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "variants.md").read_text()
THREAD = ["skip-affine-core-siblings", "nak-affine", "couple-wakee-flips", "llc-size-cores", "twiddle"]
DELAY = [name for name in PATCHES if name.startswith("numa-delay-retry")]


def found(trace: str, patches: list[str], base: str = "own", approximate: bool = False) -> Any:
    """Contrast's JSON for a trace of the corpus under a base and patches on top of it."""
    opened = Trace.open(ROOT / "tests" / "corpus" / f"{trace}.wake")
    names = [base, *(f"{base}+{patch}" for patch in patches)]
    return contrast(opened, [(name, named(name, opened.meta)) for name in names], approximate).to_json()


def share(data: Any) -> str:
    return f"{data['count']:,}, {percent(data)}"


def percent(data: Any) -> str:
    return f"{100 * data['share']:.1f} % ({100 * data['low']:.1f} – {100 * data['high']:.1f})"


def test_the_thread_of_2015_on_pgbench():
    data = found("6.12-1s4c2t-decision-pgbench", [*THREAD, "want-affine-rework"])
    assert f"| of {data['decisions']:,} placed |" in TEXT
    moved = {c["policy"]: c["moved"] for c in data["comparisons"]}
    own = data["policies"]["own"]
    assert f"| own | {own['wide']['count']} | {share(own['on_waker'])} | {own['stacked']['count']} | |" in TEXT
    for name in [*THREAD, "want-affine-rework"]:
        row = data["policies"][f"own+{name}"]
        label = "twiddle (both)" if name == "twiddle" else name
        cells = [label, f"{row['wide']['count']:,}", share(row["on_waker"]), f"{row['stacked']['count']}"]
        assert "| " + " | ".join([*cells, share(moved[f"own+{name}"])]) + " |" in TEXT
    assert moved["own+want-affine-rework"]["count"] == 0


def test_flips_on_hackbench():
    data = found("6.1-2s2c2t-decision-hackbench", ["couple-wakee-flips", "llc-size-cores", "twiddle"])
    assert f"| of {data['decisions']:,} placed |" in TEXT
    for name, row in data["policies"].items():
        if name != "kernel":
            label = name.removeprefix("own+")
            other = row["cross_node"]["count"]
            cells = [label, f"{row['wide']['count']:,}", share(row["on_waker"]), f"{other}"]
            assert "| " + " | ".join(cells) + " |" in TEXT


def test_numa_delay_retry():
    data = found("5.10-uneven-decision-forks", DELAY)
    for name, row in data["policies"].items():
        if name == "kernel":
            continue
        numa = row["numa"]
        last = "**never**" if numa["last_attempt_ms"] is None else f"{numa['last_attempt_ms'] / 1e3:.3f} s"
        attempts = f"{numa['attempts']}" if numa["attempts"] else "**0**"
        cells = [name.removeprefix("own+"), str(numa["due"]), attempts, str(numa["away"]), str(numa["gave_up"])]
        assert "| " + " | ".join([*cells, str(numa["put_off"]), str(numa["held"]), last]) + " |" in TEXT
        assert f"| {numa['faults']:,} hint faults |" in TEXT


def test_attempts_are_the_kernels():
    sums = np.zeros(2, int)
    for path in sorted((ROOT / "tests" / "corpus").glob("*.wake")):
        numa = found(path.stem, [])["policies"]["own"]["numa"]
        sums += [numa["as_kernel"], numa["faults"]] if numa else [0, 0]
    assert "agree at {:,} of the {:,} faults of the whole corpus".format(*sums) in TEXT


def test_couple_heavy_wakers():
    pgbench = found("6.12-1s4c2t-decision-pgbench", ["couple-heavy-wakers"])
    stock, patched = (pgbench["policies"][name] for name in ("own", "own+couple-heavy-wakers"))
    counts = [patched["wide"]["count"], pgbench["decisions"], stock["wide"]["count"]]
    assert "{:,} of {:,} wakeups are wide instead of {:,}".format(*counts) in " ".join(TEXT.split())
    moved = pgbench["comparisons"][0]["moved"]
    bounds = f"{100 * moved['share']:.1f} %, {100 * moved['low']:.1f} – {100 * moved['high']:.1f}"
    assert f"({moved['count']} move, {bounds})" in TEXT
    hackbench = found("6.1-2s2c2t-decision-hackbench", ["couple-heavy-wakers"])
    stock, patched = (hackbench["policies"][name] for name in ("own", "own+couple-heavy-wakers"))
    counts = [patched["wide"]["count"], hackbench["decisions"], stock["wide"]["count"]]
    assert "{:,} of {:,} are wide instead of {:,}".format(*counts) in " ".join(TEXT.split())


def test_forks_and_first_placements():
    forks = found("5.10-2s2c2t-decision-hackbench", ["numa-idlest-stay-local"], "4.15", approximate=True)
    kept = forks["policies"]["4.15+numa-idlest-stay-local"]["forks"]
    assert f"Of {sum(kept.values())} forks and execs the patch keeps {kept['stays']} on their node" in TEXT
    assert f"{kept['undecided']} are not decided" in TEXT
    numa = found("5.10-2s2c2t-decision-numa", ["init-numa-migrate-retry"])["policies"]
    stock, patched = numa["own"]["numa"], numa["own+init-numa-migrate-retry"]["numa"]
    assert f"Of {stock['faults']} faults {patched['due']} instead of {stock['due']} are due" in TEXT
    assert f"{patched['attempts']} instead of {stock['attempts']} are attempts" in TEXT


@pytest.mark.parametrize("approximate", [False, True])
def test_old_kernels_on_hackbench(approximate):
    opened = Trace.open(ROOT / "tests" / "corpus" / "6.12-2s2c2t-decision-hackbench.wake")
    releases = ["4.2", "4.3", "4.12.0", "4.13", "4.14-rc", "4.15", "4.16", "4.19"]
    data = contrast(opened, [(name, named(name, opened.meta)) for name in releases], approximate).to_json()
    rows = [data["policies"][name] for name in releases]
    label = "with `--approximate`" if approximate else "undecidable"
    assert f"| {label} | " + " | ".join(str(row["undecidable"]) for row in rows) + " |" in TEXT
    if approximate:
        for mark, name in (("cross_node", "to another node (6.12: 171)"), ("on_waker", "on waker's CPU (6.12: 1,238)")):
            cells = [row[mark] for row in rows]
            counts = [
                f"{c['count']:,} to {c['count'] + c['unknown']:,}" if c["unknown"] else f"{c['count']:,}" for c in cells
            ]
            assert f"| then {name} | " + " | ".join(counts) + " |" in TEXT


def test_wake_wide_and_idle_cpus_on_pgbench():
    text = " ".join(TEXT.split())
    idle = ["wake-wide-asymmetric", "wake-wide-idle", "prefer-idle-cpu", "balance-wake", "balance-wake+prefer-idle-cpu"]
    data = found("6.12-1s4c2t-decision-pgbench", idle)
    slow = {name.removeprefix("own+"): row["undecidable"] for name, row in data["policies"].items()}
    old = data["comparisons"][0]
    wide, moved = old["changes"]["wide"], old["moved"]
    assert f"loses {wide['lost']['count']} of the {wide['base']} wide wakeups" in text
    pairs = [row for row in old["by_pair"] if row["wakee"].startswith("pgbench:") and row["wide_base"]]
    assert all(row["wide_other"] == 0 for row in pairs)
    workers, idlers = (
        sum(row["wide_base"] for row in pairs if row["waker"].startswith(name)) for name in ("postgres", "swapper")
    )
    assert workers + idlers == sum(row["wide_base"] for row in pairs)
    assert f"wake pgbench ({workers} by a worker, {idlers} in interrupts on an idle CPU)" in text
    bounds = f"({100 * moved['share']:.2f} %, {100 * moved['low']:.2f} – {100 * moved['high']:.2f})"
    assert old["changes"]["on_waker"]["gained"]["count"] == moved["count"]
    assert f"{moved['count']} decisions move, all to the waker's CPU {bounds}" in text
    assert f"{slow['wake-wide-idle']} wakeups would have gone on to the slow path with `wake-wide-idle`" in text
    assert slow["prefer-idle-cpu"] == 0
    assert f"SD_BALANCE_WAKE the {slow['balance-wake']} wide ones do" in text
    assert f"on top of that the {slow['balance-wake+prefer-idle-cpu']} that find no idle CPU do" in text


def test_forks_that_stay_local():
    """Forks and execs by kind; the figures are sums of both."""
    opened = Trace.open(ROOT / "tests" / "corpus" / "6.12-2s2c2t-decision-forks.wake")
    names = ["own", "own+revert-numa-idlest-stay-local", "5.10"]
    data = contrast(opened, [(name, named(name, opened.meta)) for name in names]).to_json()
    for comparison in data["comparisons"]:
        kinds = [row for row in comparison["by_kind"] if row["kind"] != "wakeup"]
        count, moved, base, other = (
            sum(row[name] for row in kinds) for name in ("decisions", "moved", "cross_node_base", "cross_node_other")
        )
        assert f"| of {count} forks and execs |" in TEXT
        assert f"| own | {base} | |" in TEXT
        assert f"| {comparison['policy']} | {other} | {moved} |" in TEXT
    assert f"{data['comparisons'][1]['by_kind'][1]['moved']} stay that 6.12 sends away" in TEXT
