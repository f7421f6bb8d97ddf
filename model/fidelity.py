# SPDX-License-Identifier: GPL-2.0-only
"""The agreement of the model with real kernels over a folder of traces, as docs/fidelity.md shows it.

    python -m wakescope.model.fidelity FOLDER… > docs/fidelity.md

Traces are named KERNEL-TOPOLOGY-TIER-LOAD.wake, as testbox/campaign.py names them; `make fidelity` does all of it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..meta import SUFFIX
from ..trace import Trace
from .validate import Agreement, Share, Validation, validate

NAME = re.compile(r"(?P<kernel>[\d.]+)-(?P<topology>\w+)-(?P<tier>\w+)-(?P<load>\w+)" + re.escape(SUFFIX))
COLUMNS = ("kernel", "topology", "load", "tier", "decisions", "exact", "agree, exact", "agree, all", "undecidable")
HEAD = (*COLUMNS, "verdicts", "order")
FORKS_HEAD = (*COLUMNS, "order")

INTRODUCTION = """\
# Fidelity

How often the model chooses the CPU that the kernel chose, wakeup by wakeup, on stock kernels in the test box
(docs/testbox.md). Made by `make fidelity`, which records what is not there yet; of the corpus alone, in seconds, by
`python -m wakescope.model.fidelity tests/corpus`.

* **decisions**: wakeups that came to select_task_rq_fair while every probe was attached. Forks and execs have a table
  of their own, at the end.
* **exact**: every input was captured, and nothing the policy looks at was seen to differ between entry and return, nor
  does another record show that it changed in between. The others are raced (or undecidable). **agree, exact** and
  **agree, all** give the share of the same CPU, in brackets the lower end of its 95 % Wilson interval; an undecidable
  decision does not agree.
* **verdicts**: wake_affine's attempts and moves by the model against the kernel's schedstat counters, exact decisions.
* **order** (tier deep): exact decisions in which the kernel made the very calls of available_idle_cpu, cpus_share_cache
  and task_h_load that the model makes, with the same arguments in the same order.

Emulation runs one CPU at a time and switches between them in the middle of decisions, so races here are rarer and
longer than on hardware: what these tables test is the logic, on every path that the loads reach.
"""


CAUSES = """
## Disagreements

Every decision whose CPU the model does not give, by what it looked at and what of that changed while the kernel
decided (races.Change): a race explains it only if something did. After the counts, each one of the first folder, the
corpus.
"""

FORKS = """
## Forks and execs

find_idlest_cpu's choice, of the traces that hold what it looks at (table `loads`). Every figure of every CPU in a group
that is weighed must be the same at entry and return for a decision to be exact, so more of them are raced.
"""


def table(folders: list[Path]) -> Iterator[str]:
    """Markdown lines: a row a trace, then sums per kernel and over all. Raises UsageError if there is no trace."""
    traces = {path: NAME.fullmatch(path.name) for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))}
    named = {path: name for path, name in traces.items() if name}
    if not named:
        raise UsageError(f"no traces in {', '.join(map(str, folders))}")
    yield from _heads(HEAD)
    found: list[tuple[tuple[str, ...], Validation]] = []
    for path, name in named.items():
        opened = Trace.open(path)
        cells = (str(opened.meta["kernel"]), *name.group("topology", "load", "tier"))
        found.append((cells, validate(opened)))
        yield _row([found[-1][1]], cells)
    for kernel, names in _kernels(found):
        yield _row([v for (k, *_), v in found if k == kernel or not kernel], names)
    yield from _forks(found)
    yield from _causes(folders[0], list(named), [v for _, v in found])


def _causes(folder: Path, paths: list[Path], found: list[Validation]) -> Iterator[str]:
    """What changed in the decisions that disagree: sums, then every one of a folder."""
    sums: Counter[str] = Counter()
    for v in found:
        sums.update(v.causes)
        sums.update(v.forks.causes)
    yield CAUSES
    yield from _heads(("changed", "decisions"))
    for cause, n in sums.most_common():
        yield f"| {cause or 'nothing'} | {n:,} |"
    yield ""
    yield from _heads(("trace", "wakeup", "kernel", "model", "path", "changed", "idle at entry", "idle at exit"))
    for path, v in zip(paths, found, strict=True):
        for entry in (*v.disagreements, *v.forks.disagreements) if path.parent == folder else ():
            model, inputs = entry["model"], entry["inputs"]
            idle = (" ".join(f"{word:#x}" for word in inputs[name]) for name in ("idle", "idle_exit"))
            cells = (path.stem, entry["wakeup"], entry["kernel_cpu"], model["cpu"], model["path"].lower())
            yield f"| {' | '.join(map(str, (*cells, ' '.join(model['changed']) or 'nothing', *idle)))} |"


def _forks(found: Sequence[tuple[tuple[str, ...], Validation]]) -> Iterator[str]:
    known = [(cells, v.forks) for cells, v in found if v.forks.all.decisions > _missed([v.forks])]
    if not known:
        return
    yield FORKS
    yield from _heads(FORKS_HEAD)
    for cells, forks in known:
        yield _forks_row([forks], cells)
    for kernel, names in _kernels(known):
        yield _forks_row([f for (k, *_), f in known if k == kernel or not kernel], names)


def _heads(heads: tuple[str, ...]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)


def _kernels(found: Sequence[tuple[tuple[str, ...], Any]]) -> list[tuple[str, tuple[str, ...]]]:
    """The kernels, and the first cells of the row that sums over each; last of all "", which stands for every one."""
    kernels = sorted({kernel for (kernel, *_), _ in found})
    return [(kernel, (f"**{kernel or 'all'}**", "all", "all", "")) for kernel in (*kernels, "")]


def _row(found: list[Validation], names: tuple[str, ...]) -> str:
    """One row: shares summed over validations; verdicts and order only where the kernel's own were recorded."""
    verdicts = _sum([share for v in found for share in v.affine.values()])
    order = _sum([v.order for v in found])
    return "| " + " | ".join([*names, *_cells(found), _show(verdicts), _show(order)]) + " |"


def _forks_row(found: list[Agreement], names: tuple[str, ...]) -> str:
    return "| " + " | ".join([*names, *_cells(found), _show(_sum([f.order for f in found]))]) + " |"


def _cells(found: Sequence[Agreement]) -> list[str]:
    exact = _sum([v.certainty["EXACT"] for v in found])
    every = _sum([v.all for v in found])
    missed = f"{_missed(found) / max(1, every.decisions):.2%}"
    return [f"{every.decisions:,}", f"{exact.decisions:,}", _show(exact), _show(every), missed]


def _missed(found: Sequence[Agreement]) -> int:
    return sum(v.certainty["UNDECIDABLE"].decisions for v in found)


def _sum(shares: list[Share]) -> Share:
    return Share(sum(s.decisions for s in shares), sum(s.agree for s in shares))


def _show(share: Share) -> str:
    """Share and the lower end of its 95 % interval."""
    data = share.to_dict()
    return "–" if data["share"] is None else f"{data['share']:.3%} (≥ {data['low']:.3%})"


if __name__ == "__main__":
    print(INTRODUCTION)
    for line in table([Path(name) for name in sys.argv[1:]]):
        print(line, flush=True)
