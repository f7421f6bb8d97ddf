# SPDX-License-Identifier: GPL-2.0-only
"""Which kernels can be had: the suites of every distribution whose signing keys can be trusted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from .apt import ArchiveError, Offer, Source, host_archives, parse_offers, parse_packages, read_packages, version_key
from .distributions import DISTRIBUTIONS, Distribution
from .download import download

_KERNELS = "^linux-(image|image-unsigned|binary|modules)-[0-9]"

Say = Callable[[str], None]


def all_offers(directory: Path, say: Say) -> tuple[list[Offer], dict[str, str]]:
    """Kernels of every suite, and for each suite that could not be had the reason; say gets lines of progress.

    Lists and keys are kept under directory.
    """
    offers: list[Offer] = []
    missing: dict[str, str] = {}
    for distribution in DISTRIBUTIONS:
        try:
            keyring = trusted_keyring(distribution, directory, say)
        except ArchiveError as error:
            missing |= dict.fromkeys(distribution.suites, str(error))
            continue
        archives = host_archives(distribution)
        found: list[Offer] = []
        for suite in distribution.suites:
            say(f"reading {suite}")
            source = Source(archives[distribution.kind(suite)], suite, "main", keyring)
            try:
                records = read_packages(source, directory / suite, _KERNELS)
            except ArchiveError as error:
                missing[suite] = str(error)
                continue
            found += parse_offers(records, source.uri, suite, distribution)
        offers += newest(found) if distribution.newest_only else found
    return offers, missing


def newest(offers: list[Offer]) -> list[Offer]:
    """The newest offer of each series (5.15)."""
    ordered = sorted(offers, key=lambda offer: version_key(offer.version))
    return list({version_key(offer.version)[:2]: offer for offer in ordered}.values())


def host_keyring(distribution: Distribution) -> Path | None:
    """The keyring of a distribution's archive that the host has installed."""
    return next((path for path in distribution.keyrings if path.exists()), None)


def trusted_keyring(distribution: Distribution, directory: Path, say: Say) -> Path:
    """The keyring of a distribution's archive: the host's, else the one another distribution packages.

    Debian packages Ubuntu's keys and Ubuntu Debian's, so the chain from a key the host has holds: it signs the other
    distribution's index, whose SHA-256 is that of the package with the keys. Raises ArchiveError where the host has no
    key to begin with.
    """
    found = host_keyring(distribution)
    if found:
        return found
    lender = distribution.lender
    owner = next((other for other in DISTRIBUTIONS if host_keyring(other)), distribution)
    key = host_keyring(owner)
    if key is None:
        raise ArchiveError(f"no keyring to check it by; install {lender.package}")
    kept = directory / "keyrings" / distribution.name
    say(f"reading {lender.suite} for {distribution.name}'s keys")
    source = Source(host_archives(owner)[owner.kind(lender.suite)], lender.suite, lender.component, key)
    records = read_packages(source, directory / f"{lender.suite}-{lender.component}", f"^{lender.package}$")
    packages = list(parse_packages(records, source.uri))
    if not packages:
        raise ArchiveError(f"{lender.suite} has no package {lender.package} with the keys to check it by")
    deb, _ = max(packages, key=lambda package: version_key(package[1]))
    kept.mkdir(parents=True, exist_ok=True)
    package = download(deb, kept, say)
    done = subprocess.run(["dpkg", "-x", package, kept], capture_output=True, text=True, check=False)
    package.unlink()
    unpacked = [kept / path.relative_to("/") for path in distribution.keyrings]
    chosen = next((path for path in unpacked if path.exists()), None)
    if done.returncode or chosen is None:
        raise ArchiveError(f"{deb.name} holds no {distribution.keyrings[0].name}: {done.stderr.strip()}")
    return chosen
