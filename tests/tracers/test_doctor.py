# SPDX-License-Identifier: GPL-2.0-only
"""doctor says of record's options what record would make of them."""

import json
import subprocess
import sys

import pytest
from wakescope.errors import KernelError
from wakescope.tracers import doctor
from wakescope.tracers.offsets import Types

FLAGS = {"BALANCE_EXEC": 1, "BALANCE_FORK": 2, "SHARE_LLC": 9}


@pytest.fixture
def no_btf(monkeypatch):
    """A kernel whose types are to be had only from the vmlinux called right."""

    def kernel_types(vmlinux=None):
        if str(vmlinux) != "right":
            raise KernelError("this kernel has no BTF: give --vmlinux PATH")
        return Types("right", flags=FLAGS)

    monkeypatch.setattr(doctor, "kernel_types", kernel_types)
    monkeypatch.setattr(doctor, "_load", lambda made: doctor.Check("probes", doctor.OK, made.loader))


def found(*options):
    return {check.name: check for check in doctor.examine(*options)}


@pytest.mark.usefixtures("no_btf")
def test_the_remedy_it_names_can_be_tried():
    bad = found()["types"]
    assert (bad.state, bad.found) == (doctor.BAD, "this kernel has no BTF: give --vmlinux PATH")
    good = found("right")
    assert (good["types"].state, good["types"].found) == (doctor.NOTE, "from right")
    assert (good["loader"].found, good["probes"].found) == ("bcc", "bcc")


@pytest.mark.usefixtures("no_btf")
def test_a_loader_that_cannot_be_is_bad():
    said = found("right", "libbpf")
    assert said["tier"].state == doctor.BAD
    assert "use --loader bcc" in said["tier"].found
    assert "probes" not in said


def wakescope(*words):
    return subprocess.run([sys.executable, "-m", "wakescope", "doctor", *words], capture_output=True, text=True)


def test_the_command_line_hands_its_options_on(tmp_path):
    (tmp_path / "notes.txt").write_text("no vmlinux")
    done = wakescope("--vmlinux", str(tmp_path / "notes.txt"), "--json")
    types = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "types")
    assert types["state"] == "bad"
    assert done.returncode == 11
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_loader_is_one_line():
    done = wakescope("--loader", "lilo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "wakescope: --loader lilo: choose from libbpf, bcc\n"
