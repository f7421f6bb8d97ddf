# SPDX-License-Identifier: GPL-2.0-only
"""The distributions whose kernels a box can boot: their suites, their packages, and the keys that sign them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DEBIAN_RELEASES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid")
DEBIAN_NAMES = ("oldoldstable", "oldstable", "stable", "testing", "unstable")
UBUNTU_RELEASES = ("xenial", "bionic", "focal", "jammy", "noble", "resolute")


@dataclass(frozen=True)
class Lender:
    """Where another distribution keeps a copy of this one's keyring: its suite, component and package."""

    suite: str
    component: str
    package: str


@dataclass(frozen=True)
class Distribution:
    """A distribution: how its archive is known among a host's apt sources, and what is read from it.

    releases are the names its sources go by; suites those that hold kernels, oldest first; archives the URI of each
    kind of archive where the host names none; keyrings where a host may have the keys that sign them; lender who else
    has those keys. package matches the packages of plain kernels (group 1: which part, group 2: uname's release), of
    which a whole kernel has one of the sets of parts.
    """

    name: str
    releases: frozenset[str]
    suites: tuple[str, ...]
    archives: dict[str, str]
    keyrings: tuple[Path, ...]
    lender: Lender
    package: re.Pattern[str]
    parts: tuple[frozenset[str], ...]
    newest_only: bool

    def kind(self, suite: str) -> str:
        """Which of the archives holds a suite."""
        return "security" if suite.endswith("-security") and "security" in self.archives else "main"


# From 6.19 on linux-image is empty, the kernel is in linux-binary and its modules are in linux-modules. Flavours other
# than amd64 are left out: cloud has no 9p, and rt places wakeups of its own. A name without a full version is a
# metapackage. Debian never packaged 5.15 or 6.6 for a release.
DEBIAN = Distribution(
    name="Debian",
    releases=frozenset((*DEBIAN_RELEASES, *DEBIAN_NAMES)),
    suites=(
        "bullseye",
        "bullseye-security",
        "bookworm",
        "bookworm-security",
        "bookworm-backports",
        "trixie",
        "trixie-security",
        "trixie-backports",
        "sid",
    ),
    archives={"main": "http://deb.debian.org/debian", "security": "http://deb.debian.org/debian-security"},
    keyrings=tuple(Path(f"/usr/share/keyrings/debian-archive-keyring.{kind}") for kind in ("pgp", "gpg")),
    lender=Lender("resolute", "universe", "debian-archive-keyring"),
    package=re.compile(r"linux-(image|binary|modules)-(\d+\.\d+\.\d+[^-]*(?:-[^-]*\d)?-amd64)"),
    parts=(frozenset({"image"}), frozenset({"image", "binary", "modules"})),
    newest_only=False,
)

# Long-term releases, whose -updates hold every series they ever had, and up to a hundred builds of one: only the
# newest of each series is listed. 9p and overlayfs are in linux-modules, virtio is built in.
UBUNTU = Distribution(
    name="Ubuntu",
    releases=frozenset(UBUNTU_RELEASES),
    suites=tuple(f"{release}-updates" for release in UBUNTU_RELEASES),
    archives={"main": "http://archive.ubuntu.com/ubuntu"},
    keyrings=(Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),),
    lender=Lender("trixie", "main", "ubuntu-keyring"),
    package=re.compile(r"linux-(image-unsigned|modules)-(\d+\.\d+\.\d+-\d+-generic)"),
    parts=(frozenset({"image-unsigned", "modules"}),),
    newest_only=True,
)

DISTRIBUTIONS = (DEBIAN, UBUNTU)
