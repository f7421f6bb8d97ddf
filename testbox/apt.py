# SPDX-License-Identifier: GPL-2.0-only
"""Kernel packages of a distribution's suites, read through apt with lists of their own.

Mirrors come from the host's own apt configuration: whatever it uses for one suite of a distribution is asked for the
others. apt verifies the signatures of the indexes; the host's lists, cache and package state are neither read nor
written.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import WakescopeError
from .distributions import Distribution

HELPER = "/usr/lib/apt/apt-helper"


class ArchiveError(WakescopeError):
    """The archive of the distribution cannot be had, or what it sent is not what its index promised."""

    exit_code = 7


@dataclass(frozen=True)
class Deb:
    """One package file: where it is, how long it is in bytes, and the SHA-256 that apt's signed index gives for it."""

    name: str
    uri: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Offer:
    """A kernel a suite offers: its release (uname -r), package version, suite and the package files it is made of."""

    release: str
    version: str
    suite: str
    debs: tuple[Deb, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(deb.size for deb in self.debs)


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a kernel package's version: numbers in order, ~ before the end (6.12.9-1~bpo12 < 6.12.9-1)."""
    return (*(-1 if part == "~" else int(part) for part in re.findall(r"\d+|~", version)), 0)


def run_tool(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run an apt tool in a locale whose messages are known. Raises ArchiveError where the host has none."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except FileNotFoundError:
        raise ArchiveError(
            f"{command[0]} is not on this host, so no kernel packages can be had; give --kernel a bzImage's path"
        ) from None


def host_archives(distribution: Distribution, listing: str | None = None) -> dict[str, str]:
    """URI of each kind of archive of a distribution: the host's mirror where its apt sources name one.

    listing is the output of `apt-get indextargets` in the format used here, for tests.
    """
    if listing is None:
        targets = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
        listing = run_tool(targets).stdout
    archives: dict[str, str] = {}
    for line in listing.splitlines():
        uri, _, suite = line.partition(" ")
        if suite.partition("-")[0] in distribution.releases and not uri.startswith("cdrom:"):
            archives.setdefault(distribution.kind(suite), _first_mirror(uri))
    return distribution.archives | archives


def _first_mirror(uri: str) -> str:
    """The URI itself, or for mirror+file: the first archive that file lists."""
    if not uri.startswith("mirror+file:"):
        return uri.rstrip("/")
    lines = Path(uri.removeprefix("mirror+file:").rstrip("/")).read_text().splitlines()
    mirrors = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not mirrors:
        raise ArchiveError(f"the mirror list of {uri} is empty")
    return mirrors[0].rstrip("/")


def configuration(state: Path) -> str:
    """Text of an apt configuration, for -c, that keeps sources, lists, caches and package state under state.

    It is read after the host's, so proxies, certificates and passwords stay the host's, while hooks that would touch
    the host's own caches are cleared. The cache may lie where apt's download user cannot look, so apt drops to none.
    """
    return "#clear APT::Update;\n" + "".join(
        f'{key} "{value}";\n'
        for key, value in {
            "Dir::State": state / "state",
            "Dir::State::status": state / "status",
            "Dir::Cache": state / "cache",
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
        }.items()
    )


@dataclass(frozen=True)
class Source:
    """One component of one suite: where its archive is, and the keyring its index must be signed by."""

    uri: str
    suite: str
    component: str
    keyring: Path

    @property
    def line(self) -> str:
        """Its line in a sources.list."""
        return f"deb [arch=amd64 signed-by={self.keyring}] {self.uri} {self.suite} {self.component}\n"


def read_packages(source: Source, state: Path, names: str) -> str:
    """Update the list of a source, kept under state; returns records (deb822) of packages whose name matches names.

    names is an extended regular expression. Raises ArchiveError.
    """
    (state / "state/lists/partial").mkdir(parents=True, exist_ok=True)
    (state / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "sources.list").write_text(source.line)
    config = state / "apt.conf"
    config.write_text(configuration(state))
    update = run_tool(["apt-get", "-c", str(config), "-q", "update"])
    complaints = [line for line in update.stderr.splitlines() if line.startswith("E:")]
    if update.returncode or complaints:
        raise ArchiveError(complaints[0].removeprefix("E:").strip() if complaints else update.stderr.strip())
    return run_tool(["apt-cache", "-c", str(config), "search", "--full", "--names-only", names]).stdout


def parse_packages(records: str, uri: str) -> Iterator[tuple[Deb, str]]:
    """Package files and versions among records (deb822 stanzas) of the archive at uri."""
    for stanza in records.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Filename|Size|SHA256): (.*)$", stanza, re.MULTILINE))
        if fields:
            deb = Deb(fields["Package"], f"{uri}/{fields['Filename']}", int(fields["Size"]), fields["SHA256"])
            yield deb, fields["Version"]


def parse_offers(records: str, uri: str, suite: str, distribution: Distribution) -> list[Offer]:
    """The kernels among package records, oldest first; packages of one release are one offer.

    An image whose modules the suite no longer holds (6.19 to 7.1 in trixie-backports) is not one: it could not mount
    its root.
    """
    debs: dict[tuple[str, str], dict[str, Deb]] = {}
    for deb, version in parse_packages(records, uri):
        match = distribution.package.fullmatch(deb.name)
        if match:
            debs.setdefault((match[2], version), {})[match[1]] = deb
    offers = [
        Offer(release, version, suite, tuple(sorted(files.values(), key=lambda deb: deb.name)))
        for (release, version), files in debs.items()
        if files.keys() in distribution.parts
    ]
    return sorted(offers, key=lambda offer: version_key(offer.version))
