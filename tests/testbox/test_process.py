# SPDX-License-Identifier: GPL-2.0-only
"""A child process is ended whatever ends its parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import wakescope
from wakescope.testbox.ending import Ending
from wakescope.testbox.process import memory_file, pipes, pump, running

# Starts a child that says its process id and that of a child of its own, and then does as it is told.
PARENT = """
import os, signal, subprocess, sys
from wakescope.testbox.process import running
with running(["sh", "-c", "sleep 600 & echo $$ $!; wait"], [], subprocess.DEVNULL, None, sys.stderr.fileno()):
    print("inside", flush=True)
    {then}
"""


def start(then: str) -> tuple[subprocess.Popen[str], list[int]]:
    """The parent, and the process ids it said."""
    environment = {**os.environ, "PYTHONPATH": str(Path(wakescope.__file__).parents[1])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then=then)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    lines = sorted(parent.stdout.readline() for _ in range(2))  # digits sort before "inside"
    return parent, [int(word) for word in lines[0].split()]


def gone(number: int) -> bool:
    """Whether a process has ended (a zombie that nobody has waited for yet has)."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(number: int) -> None:
    """Wait for a process to end; fails by pidfd's own time limit."""
    try:
        descriptor = os.pidfd_open(number)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 30)[0], f"process {number} is still there"
    os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_child_and_its_children(number: signal.Signals) -> None:
    parent, children = start("signal.pause()")
    assert not any(gone(child) for child in children)
    parent.send_signal(number)
    assert parent.wait() != 0
    for child in children:
        wait_until_gone(child)


def test_the_parents_death_ends_the_child() -> None:
    parent, (child, grandchild) = start("signal.pause()")
    parent.kill()
    parent.wait()
    wait_until_gone(child)
    os.kill(grandchild, signal.SIGKILL)  # the kernel's promise is to the child alone


def test_an_exception_ends_the_child() -> None:
    parent, children = start("raise SystemExit(3)")
    assert parent.wait() == 3
    for child in children:
        wait_until_gone(child)


def test_output_goes_to_its_sink_until_all_ends() -> None:
    heard: dict[str, bytearray] = {"a": bytearray(), "b": bytearray()}
    with pipes(["a", "b"]) as (readers, writers):
        os.write(writers["a"], b"one")
        os.write(writers["b"], b"two")
        for name in ("a", "b"):
            os.close(writers.pop(name))
        ending = Ending()
        pump({readers[name]: sink.extend for name, sink in heard.items()}, ending, 600)
    assert heard == {"a": bytearray(b"one"), "b": bytearray(b"two")}
    assert not ending.timed_out


def test_time_is_up_while_a_pipe_is_open() -> None:
    ending = Ending()
    with pipes(["a"]) as (readers, _):
        pump({readers["a"]: lambda data: None}, ending, 0)
    assert ending.timed_out


def test_a_child_reads_a_file_without_a_name() -> None:
    with memory_file(b"content") as number, pipes(["out"]) as (readers, writers):
        line = ["cat", f"/dev/fd/{number}"]
        with running(line, [number], subprocess.DEVNULL, writers["out"], sys.stderr.fileno()):
            os.close(writers.pop("out"))
            assert os.read(readers["out"], 100) == b"content"
