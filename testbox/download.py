# SPDX-License-Identifier: GPL-2.0-only
"""Package files, fetched so that an interrupted download goes on, and that only what the index promised is kept.

apt goes on with a part only where the archive says when its files were modified, which not every mirror does. Here the
size and SHA-256 of the whole file are known from apt's signed index, so a part needs no date: what is missing is asked
for by its range, and the sum of the whole decides.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ..errors import OutputError
from .apt import HELPER, ArchiveError, Deb, run_tool

_STALLED = 60.0  # seconds without a byte after which a connection is given up
_CHUNK = 1 << 18


def download(deb: Deb, directory: Path, say: Callable[[str], None]) -> Path:
    """Fetch a package file into directory, going on with the part that an earlier attempt left; returns its path.

    A connection that breaks off is opened again as long as each brings something. Raises ArchiveError, or OutputError
    where the file cannot be written; the part is kept for the next attempt.
    """
    target = directory / f"{deb.name}_{deb.sha256[:16]}.deb"
    begun = have = _size(target)
    if 0 < have < deb.size:
        say(f"going on with {deb.name} at {have / 1e6:.1f} MB")
    while have < deb.size:
        _fetch_rest(deb, target, have)
        if _size(target) <= have:
            raise ArchiveError(f"{deb.name}: {deb.uri} ended at {have:,} of {deb.size:,} bytes; try again")
        have = _size(target)
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == deb.sha256:
        return target
    target.unlink()
    if begun:
        say(f"{deb.name}: the part that was there is damaged; fetching it anew")
        return download(deb, directory, say)
    raise ArchiveError(
        f"{deb.name}: {deb.uri} is not what the archive's index promised (SHA-256 {found}); "
        "read the suites anew with `wakescope box kernels --refresh`"
    )


def _size(path: Path) -> int:
    """Bytes of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def _fetch_rest(deb: Deb, target: Path, have: int) -> None:
    """Append what the archive sends after the first have bytes; start anew if it does not send parts."""
    headers = {"User-Agent": "wakescope"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = _opener(deb.uri).open(urllib.request.Request(deb.uri, headers=headers), timeout=_STALLED)
    except urllib.error.HTTPError as error:
        hint = "; read the suites anew with `wakescope box kernels --refresh`" if error.code == 404 else ""
        raise ArchiveError(f"{deb.name}: {deb.uri}: {error.code} {error.reason}{hint}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise ArchiveError(f"{deb.name}: {deb.uri}: {reason}; try again (it goes on where it stopped)") from None
    try:
        with answer, target.open("ab") as file:
            if have and answer.status != 206:
                file.truncate(0)
                have = 0
            while have < deb.size and (chunk := _read(answer, min(_CHUNK, deb.size - have))):
                file.write(chunk)
                have += len(chunk)
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written: {error.strerror}; make room, or set XDG_CACHE_HOME to a folder elsewhere "
            "(what is there is kept)"
        ) from None


def _read(answer: http.client.HTTPResponse, most: int) -> bytes:
    """The next bytes, none where the connection broke off."""
    try:
        return answer.read(most)
    except (OSError, http.client.HTTPException):
        return b""


def _opener(uri: str) -> urllib.request.OpenerDirector:
    """What opens a URI through the proxy that the host's apt would take for it.

    As apt's methods look for it: what is set for the host or found by a detection script (Acquire::http::Proxy::HOST,
    Acquire::http::Proxy-Auto-Detect), then Acquire::http::Proxy, for https before that Acquire::https::Proxy, and
    http_proxy, https_proxy and no_proxy in the environment, which urllib knows itself.
    """
    scheme = uri.partition(":")[0]
    said = run_tool([HELPER, "auto-detect-proxy", uri]).stdout
    found = re.search(r"Using proxy '(.+)' for URL", said)
    proxy = found[1] if found else ""
    for name in ("https", "http") if scheme == "https" else ("http",):
        proxy = proxy or _setting(f"Acquire::{name}::Proxy")
    if not proxy:
        return urllib.request.build_opener()
    proxies = {} if proxy == "DIRECT" else {scheme: proxy}
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))


def _setting(name: str) -> str:
    """A value of the host's apt configuration, "" if it is not set."""
    words = shlex.split(run_tool(["apt-config", "shell", "VALUE", name]).stdout)
    return words[0].partition("=")[2] if words else ""
