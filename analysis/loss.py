# SPDX-License-Identifier: GPL-2.0-only
"""What was lost, where, and what share of the span is clean (docs/definitions.md, clean)."""

from __future__ import annotations

import pandas as pd

from ..trace import Trace
from .inputs import loss_windows, losses, overlaps_loss, unseen_switches


def df_loss(trace: Trace) -> pd.DataFrame:
    """Records lost per ring and CPU. Needs no table: rings without any are left out.

    Columns: ring; cpu; tried: records the CPU tried to write (as its ring counted, -1 if it did not say); lost;
    windows: of loss; blind_s: seconds inside them.
    """
    rows = []
    for ring, windows in loss_windows(trace).items():
        tried = {r["cpu"]: r["tried"] for r in trace.meta.get("rings", []) if r["ring"] == ring}
        for cpu in sorted({*tried, *windows["cpu"].tolist()}):
            mine = windows[windows["cpu"] == cpu]
            blind = (mine["end"] - mine["start"]).sum() / 1e9
            rows.append((ring, cpu, tried.get(cpu, -1), int(mine["missing"].sum()), len(mine), blind))
    return pd.DataFrame(rows, columns=["ring", "cpu", "tried", "lost", "windows", "blind_s"])


def df_clean(trace: Trace) -> pd.DataFrame:
    """Loss per ring. Needs no table: rings without any are left out.

    Columns: ring; lost (records); clean: share of the span in which no CPU was in a loss window; unseen: switches that
    were not seen though none was lost (a CPU's switches do not join; 0 for the other rings).
    """
    begin, end = trace.span
    rows = []
    for ring, windows in loss_windows(trace).items():
        blind = sum(stop - start for start, stop in losses(trace)[ring].tolist())
        unseen = 0
        if ring == "switch":
            unseen = int((~overlaps_loss(losses(trace)[ring], *unseen_switches(trace).T)).sum())
        rows.append((ring, int(windows["missing"].sum()), 1 - blind / max(1, end - begin), unseen))
    return pd.DataFrame(rows, columns=["ring", "lost", "clean", "unseen"])


def clean_share(trace: Trace) -> float:
    """Share of the span in which no CPU was in a loss window, of the ring that is worst in that; 1 without rings."""
    clean = df_clean(trace)["clean"]
    return float(clean.min()) if len(clean) else 1.0
