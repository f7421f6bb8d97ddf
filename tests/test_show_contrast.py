# SPDX-License-Identifier: GPL-2.0-only
"""patches and contrast on the command line."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner
from wakescope.cli import app
from wakescope.errors import ModelError, OutputError
from wakescope.model.contrast import OPEN_LOOP
from wakescope.model.variants import PATCHES
from wakescope.schema import NEVER
from wakescope.tests.maketrace import make_trace, mask, task, topology, wake

CLI = CliRunner()


def trace(tmp_path: Path) -> str:
    known = {
        "wake_flags": 8, "this_load": 0, "prev_load": 5000, "wakee_h_load": 10, "has_masks": 1, "llc_size": 2,
        "this_nr_idle_scan": 2, "prev_nr_idle_scan": 2, "this_has_idle_cores": 0, "prev_has_idle_cores": 0,
        "recent_used_cpu": -1, "wakee_cpu": 2, "idle": mask([3]),
    }  # fmt: skip
    rows = [wake(n, 0, 1, 2, prev=2, chosen=0, **known) for n in range(4)]
    tables = {"wakeups": rows, "tasks": [task(1, b"a[red]"), task(2, b"b")], "switches": []}
    return str(make_trace(tmp_path / "t.wake", tables, topology(nodes=2, cores=2)).path)


def run(*args: str) -> str:
    result = CLI.invoke(app, list(args), env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_patches_lists_them_all():
    text = run("patches")
    assert all(name in text for name in PATCHES)
    rows = json.loads(run("patches", "--json"))
    assert {row["name"]: row["kernels"] for row in rows} == {p.name: p.kernels() for p in PATCHES.values()}


def test_contrast_says_what_moves(tmp_path):
    text = run("contrast", trace(tmp_path), "--policy", "own", "--policy", "own+nak-affine")
    assert OPEN_LOOP in text.replace("\n", " ")
    assert "own → own+nak-affine" in text
    assert "4  100.00% (51.01% – 100.00%) of 4 decisions move" in text
    assert "to another node: 4 → 0 (0 gained, 0.00% – 48.99%; 4 lost, 51.01% – 100.00%)" in text
    assert "a[red]:1" in text  # a name is no markup


def test_wide_is_told_where_it_is_known(tmp_path):
    flips = {"waker_flips": 16, "wakee_flips": 2, "waker_last_wakee": 2, "waker_decay_ts": 1_000_000, "llc_size": 2}
    rows = [wake(1, 0, 1, 2, prev=2, chosen=2, **flips), wake(2, 0, 1, 2, prev=2, chosen=2, waker_flips=NEVER)]
    tables = {"wakeups": rows, "tasks": [task(1), task(2)], "switches": []}
    made = make_trace(tmp_path / "t.wake", tables, topology(nodes=2, cores=2))
    text = run("contrast", str(made.path), "--policy", "own+wake-wide-asymmetric")  # no word on who idled: undecidable
    assert "wide: 1 → 0 (0 gained, 0.00% – 90.55%; 1 lost, 9.45% – 100.00%; 1 unknown)" in text


def test_one_policy_is_set_against_the_traces_own(tmp_path):
    data = json.loads(run("contrast", trace(tmp_path), "--policy", "6.12+nak-affine", "--json"))
    (comparison,) = data["comparisons"]
    assert (comparison["base"], comparison["policy"]) == ("own", "6.12+nak-affine")
    assert comparison["moved"]["count"] == 4


def test_what_an_old_kernel_would_need_is_said(tmp_path):
    text = run("contrast", trace(tmp_path), "--policy", "4.3")
    assert "0 to 4 (0.00% – 100.00%) of 4 decisions move; 4 cannot be decided under both" in text
    assert "effective_load() needs weights" in text
    assert "APPROXIMATION" not in text
    approximated = run("contrast", trace(tmp_path / "again"), "--policy", "4.3", "--approximate")
    assert "APPROXIMATION: effective_load() needs weights" in approximated
    assert "cannot be decided" not in approximated


def test_parquet(tmp_path):
    out = tmp_path / "c.parquet"
    made = trace(tmp_path)
    run("contrast", made, "--policy", "own+nak-affine", "-o", str(out))
    frame = pd.read_parquet(out)
    assert frame.groupby("policy")["policy_cpu"].first().to_dict() == {"kernel": 0, "own": 0, "own+nak-affine": 3}
    with pytest.raises(OutputError, match="exists"):
        run("contrast", made, "--policy", "own+nak-affine", "-o", str(out))


def test_a_full_disk_leaves_no_file_behind(tmp_path):
    out = tmp_path / "c.parquet"
    made = trace(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # writing on fails as on a full disk
    try:
        with pytest.raises(OutputError, match=f"cannot write {out}: .*File too large"):
            run("contrast", made, "--policy", "own+nak-affine", "-o", str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["t.wake"]
    run("contrast", made, "--policy", "own+nak-affine", "-o", str(out))
    assert len(pd.read_parquet(out)) == 3 * 4


def test_a_patch_that_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ModelError, match="beef-up-wake-wide makes no sense where wake_wide is symmetric"):
        run("contrast", trace(tmp_path), "--policy", "6.12+beef-up-wake-wide")
