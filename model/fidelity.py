# SPDX-License-Identifier: GPL-2.0-only
"""The agreement of the model with real kernels over a folder of traces, as docs/fidelity.md shows it.

    python -m wakescope.model.fidelity FOLDER… > docs/fidelity.md

Traces are named KERNEL-TOPOLOGY-TIER-LOAD.wake, as testbox/campaign.py names them; `make fidelity` does all of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from ..trace import SUFFIX, Trace
from .validate import Share, Validation, validate

NAME = re.compile(r"(?P<kernel>[\d.]+)-(?P<topology>\w+)-(?P<tier>\w+)-(?P<load>\w+)" + re.escape(SUFFIX))
COLUMNS = ("kernel", "topology", "load", "tier", "decisions", "exact", "agree, exact", "agree, all", "undecidable")
HEAD = f"| {' | '.join((*COLUMNS, 'verdicts', 'order'))} |"

INTRODUCTION = """\
# Fidelity

How often the model chooses the CPU that the kernel chose, wakeup by wakeup, on stock kernels in the test box
(docs/testbox.md). Made by `make fidelity`, which records what is not there yet; of the corpus alone, in seconds, by
`python -m wakescope.model.fidelity tests/corpus`.

* **decisions**: wakeups that came to select_task_rq_fair while every probe was attached. Forks and execs are left out.
* **exact**: every input was captured, and nothing the policy looks at was seen to differ between entry and return.
  The others are raced (or undecidable). **agree, exact** and **agree, all** give the share of the same CPU, in brackets
  the lower end of its 95 % Wilson interval; an undecidable decision does not agree.
* **verdicts**: wake_affine's attempts and moves by the model against the kernel's schedstat counters, exact decisions.
* **order** (tier deep): exact decisions in which the kernel made the very calls of available_idle_cpu, cpus_share_cache
  and task_h_load that the model makes, with the same arguments in the same order.

Emulation runs one CPU at a time and switches between them in the middle of decisions, so races here are rarer and
longer than on hardware: what these tables test is the logic, on every path that the loads reach.
"""


def table(folders: list[Path]) -> Iterator[str]:
    """Markdown lines: a row a trace, then sums per kernel and over all. Raises UsageError if there is no trace."""
    traces = sorted(trace for folder in folders for trace in folder.glob(f"*{SUFFIX}"))
    if not traces:
        raise UsageError(f"no traces in {', '.join(map(str, folders))}")
    yield HEAD
    yield "|" + "---|" * (HEAD.count("|") - 1)
    found: list[tuple[str, Validation]] = []
    for path in traces:
        name = NAME.fullmatch(path.name)
        if name:
            opened = Trace.open(path)
            found.append((opened.meta["kernel"], validate(opened)))
            yield _row([found[-1][1]], opened.meta["kernel"], name["topology"], name["load"], name["tier"])
    for kernel in sorted({kernel for kernel, _ in found}):
        yield _row([v for k, v in found if k == kernel], f"**{kernel}**", "all", "all", "")
    yield _row([v for _, v in found], "**all**", "all", "all", "")


def _row(found: list[Validation], *names: str) -> str:
    """One row: shares summed over validations; verdicts and order only where the kernel's own were recorded."""
    exact = _sum([v.certainty["EXACT"] for v in found])
    every = _sum([v.all for v in found])
    missed = sum(v.certainty["UNDECIDABLE"].decisions for v in found)
    verdicts = _sum([share for v in found for share in v.affine.values()])
    order = _sum([v.order for v in found])
    cells = [f"{every.decisions:,}", f"{exact.decisions:,}", _show(exact), _show(every)]
    cells += [f"{missed / max(1, every.decisions):.2%}", _show(verdicts), _show(order)]
    return "| " + " | ".join([*names, *cells]) + " |"


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
