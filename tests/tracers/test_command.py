# SPDX-License-Identifier: GPL-2.0-only
"""A recorded command is where its caller is, and ends with everything it started."""

import os
import signal
import subprocess
import sys

import pytest
from wakescope.errors import CommandError
from wakescope.tracers import command
from wakescope.tracers.command import Command

# Says the process ids of itself, a child that ignores SIGTERM, and an orphan in a session of its own; then waits.
FAMILY = """
trap '' TERM
sh -c 'echo $$; exec sleep 600' &
setsid sh -c 'sh -c "echo \\$\\$; exec sleep 600" & exit' &
echo $$
wait
sleep 600
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(command, "GRACE", 0.3)


def started(script, tmp_path, lines):
    """The command of a shell script, and the numbers it has said."""
    heard = tmp_path / "heard"
    heard.touch()
    made = Command(["sh", "-c", f"exec > {heard}\n{script}"])
    while len(heard.read_text().split()) < lines:
        assert made._process.poll() is None
    return made, [int(word) for word in heard.read_text().split()]


def gone(pid):
    return pid not in command._processes() or command._processes()[pid][1] in "ZX"


def test_all_that_stems_from_it_ends(tmp_path):
    beside = subprocess.Popen(["sleep", "600"])  # a child of ours that is not the command's
    made, pids = started(FAMILY, tmp_path, 3)
    rounds = []
    made.end(lambda: rounds.append(1))
    assert all(gone(pid) for pid in pids)
    assert rounds
    assert made.wait() == -signal.SIGKILL
    assert not gone(beside.pid)
    beside.kill()
    beside.wait()


def test_no_zombie_is_left(tmp_path):
    made, pids = started(FAMILY, tmp_path, 3)
    made.end(lambda: None)
    made._left()
    assert not set(pids) & set(command._processes())


def test_a_command_that_ends_when_asked_is_not_killed(tmp_path):
    made, _ = started("trap 'exit 5' TERM; echo 1; while :; do sleep 0.01; done", tmp_path, 1)
    made.end(lambda: None)
    assert made.wait() == 5


def test_what_a_command_left_on_purpose_is_let_be(tmp_path):
    made = Command(["sh", "-c", f"setsid sleep 600 & echo $! > {tmp_path}/heard; exit 3"])
    assert made.wait() == 3
    left = int((tmp_path / "heard").read_text())
    made.end(lambda: None)
    assert not gone(left)
    os.kill(left, signal.SIGKILL)


def test_it_has_its_callers_terminal():
    """Process group and session are the caller's: Ctrl-C and Ctrl-Z reach it, and it may read the terminal."""
    script = "import os; assert (os.getpgrp(), os.getsid(0)) == tuple(map(int, os.sys.argv[1:]))"
    made = Command([sys.executable, "-c", script, str(os.getpgrp()), str(os.getsid(0))])
    assert made.wait() == 0


def test_a_command_that_cannot_be_started_is_said(tmp_path):
    with pytest.raises(CommandError, match="no such command"):
        Command(["no-such-command"])
    with pytest.raises(CommandError, match="cannot be started: Permission denied"):
        Command([str(tmp_path)])
