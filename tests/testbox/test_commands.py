# SPDX-License-Identifier: GPL-2.0-only
"""`wakescope box` without booting: what it refuses, in one line and with an exit status that says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wakescope
from wakescope.testbox import kernels
from wakescope.testbox.apt import Deb, Offer


def box(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `wakescope box` with a cache of the test's own."""
    package = str(Path(wakescope.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "XDG_CACHE_HOME": str(cache), "COLUMNS": "120"}
    line = [sys.executable, "-m", "wakescope", "box", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["run", "--topology", "round", "--", "true"], 2, "no topology round"),
        (["run", "--distance", "5", "--", "true"], 2, "--distance 5"),
        (["run", "--offline", "9", "--", "true"], 2, "--offline 9"),
        (["run", "--kernel", "/nonexistent/vmlinuz", "--", "true"], 8, "no bzImage at /nonexistent/vmlinuz"),
        (["run", "--kernel", "/etc/passwd", "--", "true"], 8, "/etc/passwd is not a bzImage"),
        (["shell"], 2, "needs a terminal"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: list[str], status: int, said: str, tmp_path: Path) -> None:
    done = box(*words, cache=tmp_path)
    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_run_needs_a_command(tmp_path: Path) -> None:
    done = box("run", cache=tmp_path)
    assert done.returncode == 2
    assert "COMMAND" in done.stderr.upper()


def test_kernels_are_listed_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = Offer("6.12.118+deb13-amd64", "6.12.118-1", "trixie-security", (Deb("k", "http://a", 108_500_000, "ab"),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "all_offers", lambda folder, say: ([offer], {"sid": "it is away"}))
    kernels.catalogue(lambda _: None)
    done = box("kernels", cache=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split() == ["6.12.118-1", "6.12.118+deb13-amd64", "trixie-security", "108"]
    assert done.stderr == "box: sid cannot be had: it is away\n"
