# SPDX-License-Identifier: GPL-2.0-only
"""Kernel packages of Debian's suites, read through apt with lists of their own.

The archives come from the host's own apt configuration: whatever mirror it uses for one Debian suite is asked for the
others. apt verifies the signatures of the indexes and the hash of each download; the host's lists, cache and package
state are neither read nor written.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import WakescopeError

# Suites that hold kernels, oldest kernel first. Debian never packaged 5.15 or 6.6 for a release.
SUITES = (
    "bullseye",
    "bullseye-security",
    "bookworm",
    "bookworm-security",
    "bookworm-backports",
    "trixie",
    "trixie-security",
    "trixie-backports",
    "sid",
)
_CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid")
_DEBIAN_RELEASES = {*_CODENAMES, "oldoldstable", "oldstable", "stable", "testing", "unstable"}
_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.pgp", "/usr/share/keyrings/debian-archive-keyring.gpg")
_HELPER = "/usr/lib/apt/apt-helper"

# From 6.19 on linux-image is empty, the kernel is in linux-binary and its modules are in linux-modules. Flavours other
# than amd64 are left out: cloud has no 9p, and rt places wakeups of its own. A name without a full version is a
# metapackage.
_PACKAGE = re.compile(r"linux-(?:image|binary|modules)-(\d+\.\d+\.\d+[^-]*(?:-[^-]*\d)?-amd64)")


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
    """Sort key of a kernel package's version: its numbers in order (the suites in SUITES carry no ~rc versions)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run an apt tool in a locale whose messages are known."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except FileNotFoundError:
        raise ArchiveError(
            f"{command[0]} is not on this host, so no kernel packages can be had; give --kernel a bzImage's path"
        ) from None


def host_archives(listing: str | None = None) -> dict[str, str]:
    """URI of the main ("debian") and of the security ("security") archive of Debian among the host's apt sources.

    listing is the output of `apt-get indextargets` in the format used here, for tests. Raises ArchiveError where the
    host has no Debian archive (Ubuntu, Fedora).
    """
    if listing is None:
        targets = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"]
        listing = _run(targets).stdout
    archives: dict[str, str] = {}
    for line in listing.splitlines():
        uri, _, release = line.partition(" ")
        base, _, pocket = release.partition("-")
        if base not in _DEBIAN_RELEASES or uri.startswith("cdrom:"):
            continue
        kind = "security" if pocket == "security" else "debian"
        archives.setdefault(kind, _first_mirror(uri))
    if not archives:
        raise ArchiveError(
            "this host's apt sources name no Debian archive, so no kernel packages can be had; "
            "add one (any Debian suite), or give --kernel a bzImage's path"
        )
    return archives


def _first_mirror(uri: str) -> str:
    """The URI itself, or for mirror+file: the first archive that file lists (apt-helper does not know that scheme)."""
    if not uri.startswith("mirror+file:"):
        return uri.rstrip("/")
    lines = Path(uri.removeprefix("mirror+file:").rstrip("/")).read_text().splitlines()
    mirrors = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not mirrors:
        raise ArchiveError(f"the mirror list of {uri} is empty")
    return mirrors[0].rstrip("/")


def source_line(uri: str, suite: str, keyrings: Iterable[str] = _KEYRINGS) -> str:
    """The sources.list line of a suite, signed by Debian's keyring where the host has one, else by apt's own trust."""
    keyring = next((path for path in keyrings if Path(path).exists()), None)
    options = "arch=amd64" + (f" signed-by={keyring}" if keyring else "")
    return f"deb [{options}] {uri} {suite} main\n"


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


def _prepare(state: Path, source: str) -> Path:
    """Lay out the private apt state of one suite; returns its apt.conf."""
    (state / "state/lists/partial").mkdir(parents=True, exist_ok=True)
    (state / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "sources.list").write_text(source)
    config = state / "apt.conf"
    config.write_text(configuration(state))
    return config


def suite_offers(suite: str, archives: dict[str, str], directory: Path) -> list[Offer]:
    """Update the lists of one suite under directory and return the kernels it offers; raises ArchiveError."""
    kind = "security" if suite.endswith("-security") else "debian"
    if kind not in archives:
        raise ArchiveError(f"this host's apt sources name no {kind} archive of Debian")
    uri = archives[kind]
    config = _prepare(directory / suite, source_line(uri, suite))
    update = _run(["apt-get", "-c", str(config), "-q", "update"])
    complaints = [line for line in update.stderr.splitlines() if line.startswith("E:")]
    if update.returncode or complaints:
        raise ArchiveError(complaints[0].removeprefix("E:").strip() if complaints else update.stderr.strip())
    pattern = "^linux-(image|binary|modules)-[0-9]"
    records = _run(["apt-cache", "-c", str(config), "search", "--full", "--names-only", pattern])
    return parse_offers(records.stdout, uri, suite)


def parse_offers(records: str, uri: str, suite: str) -> list[Offer]:
    """The kernels among package records (deb822 stanzas), oldest first; packages of one release are one offer.

    An image whose modules the suite no longer holds (6.19 to 7.1 in trixie-backports) is not one: it could not mount
    its root.
    """
    debs: dict[tuple[str, str], list[Deb]] = {}
    for stanza in records.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Filename|Size|SHA256): (.*)$", stanza, re.MULTILINE))
        match = _PACKAGE.fullmatch(fields.get("Package", ""))
        if match:
            deb = Deb(fields["Package"], f"{uri}/{fields['Filename']}", int(fields["Size"]), fields["SHA256"])
            debs.setdefault((match[1], fields["Version"]), []).append(deb)
    offers = [
        Offer(release, version, suite, tuple(sorted(files, key=lambda deb: deb.name)))
        for (release, version), files in debs.items()
        if {deb.name.split("-")[1] for deb in files} in ({"image"}, {"image", "binary", "modules"})
    ]
    return sorted(offers, key=lambda offer: version_key(offer.version))


def all_offers(directory: Path, say: Callable[[str], None]) -> tuple[list[Offer], dict[str, str]]:
    """Kernels of every suite, and for each suite that could not be had the reason; say gets a line of progress."""
    archives = host_archives()
    offers: list[Offer] = []
    missing: dict[str, str] = {}
    for suite in SUITES:
        say(f"reading {suite}")
        try:
            offers += suite_offers(suite, archives, directory)
        except ArchiveError as error:
            missing[suite] = str(error)
    return offers, missing


def download(deb: Deb, directory: Path) -> Path:
    """Fetch a package file into directory; apt checks its hash and goes on where an earlier attempt stopped.

    Raises ArchiveError.
    """
    target = directory / f"{deb.name}_{deb.sha256[:16]}.deb"
    if target.exists() and target.stat().st_size > deb.size:
        target.unlink()
    got = _run([_HELPER, "-o", "APT::Sandbox::User=", "download-file", deb.uri, str(target), f"SHA256:{deb.sha256}"])
    if got.returncode or not target.exists():
        reason = next((line for line in got.stderr.splitlines() if line.startswith("E:")), got.stderr.strip())
        raise ArchiveError(
            f"{deb.name}: {reason.removeprefix('E:').strip()}; try again (it goes on where it stopped), or "
            "read the suites anew with `wakescope box kernels --refresh`"
        )
    return target
