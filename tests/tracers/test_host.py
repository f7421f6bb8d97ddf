# SPDX-License-Identifier: GPL-2.0-only
"""What is read of the running machine."""

import platform

from wakescope.tracers import host


def test_ubuntus_version_names_the_stable_release(monkeypatch):
    signature = "Ubuntu 5.15.0-139.149~20.04.1-generic 5.15.178"
    monkeypatch.setattr(host, "read", {"/proc/version_signature": signature}.get)
    assert host.version() == f"{platform.version()} ({signature})"


def test_elsewhere_it_is_unames(monkeypatch):
    monkeypatch.setattr(host, "read", lambda path: None)
    assert host.version() == platform.version()
