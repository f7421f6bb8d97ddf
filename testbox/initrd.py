# SPDX-License-Identifier: GPL-2.0-only
"""The initramfs of a box: busybox, the few modules that reach the host's file system, and the scripts of one run."""

from __future__ import annotations

import io
import lzma
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from ..errors import WakescopeError

# What a kernel needs to reach the host: virtio's bus, the ports the output goes through, 9p, and the overlay.
_WANTED_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
_APPLETS = "cat cp echo hostname insmod ip ln mkdir mount poweroff sh switch_root tr uname"
# read now: a test becomes another user, who may not look where this lies
_SCRIPTS = {name: (Path(__file__).parent / name).read_bytes() for name in ("init.sh", "main.sh", "settings.sh")}
_FOLDERS = ("bin", "box", "dev", "lower", "modules", "new", "proc", "sys", "upper")


class BoxSetupError(WakescopeError):
    """The host lacks something a box needs (QEMU, busybox), or the guest refused a setting."""

    exit_code = 9


@dataclass(frozen=True)
class Entry:
    """One file of the archive: st_mode and content (a symbolic link's target)."""

    mode: int
    content: bytes = b""


def cpio(entries: dict[str, Entry]) -> bytes:
    """A cpio archive in the kernel's "newc" form (Documentation/driver-api/early-userspace/buffer-format.rst).

    entries maps paths without a leading slash to files, folders before what they hold; everything belongs to root.
    """
    archive = io.BytesIO()
    for number, (name, entry) in enumerate([*entries.items(), ("TRAILER!!!", Entry(0))], start=1):
        path = name.encode() + b"\0"
        fields = (number, entry.mode, 0, 0, 1, 0, len(entry.content), 0, 0, 0, 0, len(path), 0)
        archive.write(b"070701" + b"".join(b"%08X" % field for field in fields) + path)
        archive.write(b"\0" * (-archive.tell() % 4))
        archive.write(entry.content)
        archive.write(b"\0" * (-archive.tell() % 4))
    return archive.getvalue()


def static_busybox() -> Path:
    """The host's busybox, which must be static to run without the host's libraries; raises BoxSetupError."""
    found = shutil.which("busybox", path="/bin:/usr/bin:/usr/local/bin:/sbin:/usr/sbin")
    if found is None:
        raise BoxSetupError("a box needs a static busybox: install busybox-static")
    with Path(found).open("rb") as file:
        if any(segment.header.p_type == "PT_INTERP" for segment in ELFFile(file).iter_segments()):
            raise BoxSetupError(f"{found} is not static and cannot start a box: install busybox-static")
    return Path(found)


def module_name(path: Path) -> str:
    """A module's name as the kernel spells it: file name without .ko and compression, dashes as underscores."""
    return path.name.split(".ko")[0].replace("-", "_")


def read_module(path: Path) -> bytes:
    """A module's ELF image, unpacked."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-qdc", path], capture_output=True, check=True).stdout
    return path.read_bytes()


def module_depends(image: bytes) -> list[str]:
    """Names of the modules a module needs, from its own .modinfo."""
    try:
        section = ELFFile(io.BytesIO(image)).get_section_by_name(".modinfo")
    except ELFError as error:
        raise BoxSetupError(f"a kernel module is damaged ({error}); fetch the kernel again") from None
    entries = section.data().split(b"\0") if section else []
    depends = next((entry for entry in entries if entry.startswith(b"depends=")), b"depends=")
    return [name.replace("-", "_") for name in depends.removeprefix(b"depends=").decode().split(",") if name]


def needed_modules(folder: Path) -> dict[str, bytes]:
    """Images of the modules a box needs, by name, each after those it depends on.

    A module without a file is taken to be built in; init.sh says so if it is not.
    """
    files = {module_name(path): path for path in (folder / "kernel").rglob("*.ko*")}
    images: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in images or name not in files:
            return
        image = read_module(files[name])
        for needed in module_depends(image):
            add(needed)
        images[name] = image

    for name in _WANTED_MODULES:
        add(name)
    return images


def build(modules: Path | None, settings: str, command: bytes) -> bytes:
    """The initramfs of one run, as a cpio archive.

    settings is a shell script of calls to init.sh's functions, command the shell script main.sh runs; both are given
    whole, with whatever came from a user quoted.
    """
    directory, program = Entry(stat.S_IFDIR | 0o755), stat.S_IFREG | 0o755
    entries = dict.fromkeys(_FOLDERS, directory)
    entries["bin/busybox"] = Entry(program, static_busybox().read_bytes())
    for applet in _APPLETS.split():
        entries[f"bin/{applet}"] = Entry(stat.S_IFLNK | 0o777, b"busybox")
    entries["init"] = Entry(program, _SCRIPTS["init.sh"])
    for script in ("main.sh", "settings.sh"):
        entries[f"box/{script}"] = Entry(program, _SCRIPTS[script])
    entries["box/settings"] = Entry(program, settings.encode())
    entries["box/command"] = Entry(program, command)
    images = needed_modules(modules) if modules else {}
    for name, image in images.items():
        entries[f"modules/{name}"] = Entry(program, image)
    entries["modules/order"] = Entry(program, "".join(f"{name}\n" for name in images).encode())
    return cpio(entries)
