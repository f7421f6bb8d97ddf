# SPDX-License-Identifier: GPL-2.0-only
"""Kernels to boot: distribution kernels fetched into a cache, or a bzImage of the user's own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import OutputError, WakescopeError
from .apt import ArchiveError, Deb, Offer, version_key
from .download import download
from .offers import all_offers

_CATALOGUE_AGE = 24 * 3600  # seconds after which the list of kernels to be had is read again


class NoKernelError(WakescopeError):
    """No kernel answers to what was asked for."""

    exit_code = 8


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be booted: uname's release, full version, image, and its modules' folder where it has one."""

    release: str
    version: str
    image: Path
    modules: Path | None

    @property
    def number(self) -> tuple[int, ...]:
        """Major, minor and patch level: (6, 1, 192) for Debian's 6.1.0-57, whose release does not tell."""
        return version_key(self.version.partition("-")[0])[:3]


def cache_dir() -> Path:
    """Where kernels and what is known of the host are kept: $XDG_CACHE_HOME/wakescope or ~/.cache/wakescope."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "wakescope"


def matches(wanted: str, release: str, version: str) -> bool:
    """Whether wanted (6.12, 6.12.95, a release, a package name) names the kernel of that release and version."""
    upstream = re.split(r"[-+~]", version)[0]
    names = (release, version, f"linux-image-{release}", f"linux-image-unsigned-{release}")
    return wanted in names or f"{upstream}.".startswith(f"{wanted}.")


def image_release(image: Path) -> str:
    """The release a bzImage says it has (boot protocol 2.00: kernel_version at 0x20e); NoKernelError if it is none."""
    try:
        with image.open("rb") as file:
            header = file.read(0x10000)
    except PermissionError:
        raise NoKernelError(f"{image} is not readable for this user; copy it, or unpack its package instead") from None
    if header[0x202:0x206] != b"HdrS":
        raise NoKernelError(f"{image} is not a bzImage")
    offset = int.from_bytes(header[0x20E:0x210], "little") + 0x200
    return header[offset : offset + 256].split(b"\0")[0].split(b" ")[0].decode()


def from_path(path: Path) -> Kernel:
    """The kernel of a bzImage, a kernel build tree, or an unpacked package; NoKernelError if there is none.

    Modules are those beside the image in its own tree, else the ones installed for its release; a kernel with 9p,
    overlayfs and virtio built in needs none.
    """
    path = path.expanduser().resolve()
    places = ("arch/x86/boot/bzImage", "boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz", "lib/modules/*/vmlinuz")
    try:
        images = [path] if path.is_file() else [found for place in places for found in sorted(path.glob(place))]
    except PermissionError:
        raise NoKernelError(f"{path} is not readable for this user; copy it, or fetch a package instead") from None
    if not images:
        raise NoKernelError(f"no bzImage at {path}")
    image = images[0]
    release = image_release(image)
    trees = [tree / name for tree in (path, image.parents[1], Path("/")) for name in ("lib", "usr/lib")]
    folders = [image.parent, *(tree / "modules" / release for tree in trees)]
    modules = next((folder for folder in folders if (folder / "kernel").is_dir()), None)
    return Kernel(release, release, image, modules)


def cached() -> list[Kernel]:
    """Kernels in the cache, oldest first."""
    kernels = []
    for note in sorted((cache_dir() / "kernels").glob("*/package.json")):
        found = from_path(note.parent)
        kernels.append(Kernel(found.release, json.loads(note.read_text())["version"], found.image, found.modules))
    return sorted(kernels, key=lambda kernel: version_key(kernel.version))


@dataclass
class Catalogue:
    """What the distribution's suites offer: kernels oldest first, and why a suite could not be had."""

    offers: list[Offer]
    missing: dict[str, str]


def catalogue(say: Callable[[str], None], refresh: bool = False) -> Catalogue:
    """The kernels to be had, from the cache unless it is over a day old; say gets lines of progress.

    Raises ArchiveError where the host has no archive to ask.
    """
    path = cache_dir() / "catalogue.json"
    if not refresh and path.exists() and time.time() - path.stat().st_mtime < _CATALOGUE_AGE:
        data = json.loads(path.read_text())
        offers = [Offer(**{**entry, "debs": tuple(Deb(**deb) for deb in entry["debs"])}) for entry in data["offers"]]
        return Catalogue(offers, data["missing"])
    with _locked(cache_dir() / "catalogue.lock"):
        offers, missing = all_offers(cache_dir() / "apt", say)
        if not offers:
            raise ArchiveError(f"no suite can be read: {next(iter(missing.values()))}")
        unique = {(offer.release, offer.version): offer for offer in offers}
        result = Catalogue(sorted(unique.values(), key=lambda offer: version_key(offer.version)), missing)
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(asdict(result), indent=1))
        partial.replace(path)
    return result


def find(wanted: str, say: Callable[[str], None]) -> Kernel:
    """The kernel wanted names: a path, else the newest match in the cache, else the newest to be had, fetched.

    Raises NoKernelError or ArchiveError.
    """
    if "/" in wanted or Path(wanted).is_file():
        return from_path(Path(wanted))
    found = [kernel for kernel in cached() if matches(wanted, kernel.release, kernel.version)]
    return found[-1] if found else fetch(wanted, say)


def fetch(wanted: str, say: Callable[[str], None]) -> Kernel:
    """Fetch the newest kernel the suites offer that wanted names, unless the cache has it.

    Raises NoKernelError or ArchiveError.
    """
    listed = catalogue(say)
    offers = [offer for offer in listed.offers if matches(wanted, offer.release, offer.version)]
    if not offers:
        unread = "".join(f"; {suite} could not be read: {why}" for suite, why in listed.missing.items())
        raise NoKernelError(
            f"no kernel {wanted} in the cache or in the suites of Debian and Ubuntu{unread}; "
            "`wakescope box kernels` lists them"
        )
    offer = offers[-1]
    folder = cache_dir() / "kernels" / offer.release
    with _locked(cache_dir() / "kernels" / f"{offer.release}.lock"):
        if not (folder / "package.json").exists():
            _unpack(offer, folder, say)
    return next(kernel for kernel in cached() if kernel.release == offer.release)


def _unpack(offer: Offer, folder: Path, say: Callable[[str], None]) -> None:
    """Download the packages of an offer and unpack them into folder, which appears only when it is whole."""
    partial = folder.with_name(f"{folder.name}.new")
    debs = cache_dir() / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    packages = []
    for deb in offer.debs:
        say(f"fetching {deb.name} {offer.version} ({deb.size / 1e6:.1f} MB) from {offer.suite}")
        packages.append(download(deb, debs, say))
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for package in packages:
        done = subprocess.run(["dpkg", "-x", package, partial], capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(partial, ignore_errors=True)
            reason = done.stderr.strip().partition("\n")[0]
            raise OutputError(
                f"cannot unpack {package.name} into {partial}: {reason}; make room, or set XDG_CACHE_HOME to a folder "
                "elsewhere"
            )
    (partial / "package.json").write_text(json.dumps(asdict(offer), indent=1))
    partial.replace(folder)
    for package in packages:
        package.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file: two boxes that want the same kernel at once fetch it once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise NoKernelError(
            f"the cache {path.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can"
        ) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
