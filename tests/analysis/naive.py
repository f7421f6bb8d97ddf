# SPDX-License-Identifier: GPL-2.0-only
"""A trace as plain rows, and what plain loops make of them: nothing of analysis/ but the labels of tasks."""

from collections import defaultdict
from functools import cached_property

from wakescope.analysis.tasks import df_tasks
from wakescope.schema import NumaEvent, Outcome
from wakescope.trace import Trace

PLACED = (Outcome.PLACED, Outcome.FORK, Outcome.EXEC)
RUNNABLE = (
    Outcome.PLACED, Outcome.FORK, Outcome.DELAYED, Outcome.PINNED, Outcome.MIGRATION_DISABLED, Outcome.NOT_FAIR,
    Outcome.WAKELIST,
)  # fmt: skip


class Rows:
    """A trace as lists of dicts, each wakeup with waker, wakee (labels) and its masks as sets of CPUs."""

    def __init__(self, path):
        self.trace = Trace.open(path)
        self.cpus = {c.cpu: c for c in self.trace.topology.cpus}
        tasks = df_tasks(self.trace)
        self.labels = {
            (pid, start): label for pid, start, label in tasks[["pid", "start", "label"]].to_numpy().tolist()
        }
        self.holders = defaultdict(list)
        for pid, start in sorted(self.labels, key=lambda key: key[1]):
            self.holders[pid].append((start, self.labels[pid, start]))
        self.wakeups = self.table("wakeups")
        raw = self.trace.array("wakeups", ["idle", "sched_idle", "allowed"])
        for row, bits in zip(self.wakeups, raw, strict=True):
            row["waker"] = self.labels[row["waker_pid"], row["waker_start"] if row["waker_pid"] else row["cpu"]]
            row["wakee"] = self.labels[row["wakee_pid"], row["wakee_start"]]
            for name in ("idle", "sched_idle", "allowed"):
                row[name] = {cpu for cpu in self.cpus if int(bits[name][cpu // 64]) >> cpu % 64 & 1}
        self.decided = [row for row in self.wakeups if row["outcome"] in PLACED]
        self.placed = [row for row in self.wakeups if row["outcome"] == Outcome.PLACED]

    def table(self, name):
        return self.trace.df(name).to_dict("records")

    def holder(self, pid, ts):
        """Label of who had a pid."""
        return next((label for start, label in reversed(self.holders[pid]) if pid and start <= ts), None)

    def far(self, a, b):
        if a not in self.cpus or b not in self.cpus:
            return "unknown"
        same = [
            name
            for name in ("cpu", "core", "llc", "node")
            if getattr(self.cpus[a], name) == getattr(self.cpus[b], name)
        ]
        return {"cpu": "cpu", "core": "smt", "llc": "llc", "node": "node"}[same[0]] if same else "cross"

    def node(self, cpu):
        return self.cpus[cpu].node if cpu in self.cpus else -1

    def is_wide(self, row, factor=None):
        flips, factor = self.after(row)[0], factor or row["llc_size"]
        high, low = max(flips, row["wakee_flips"]), min(flips, row["wakee_flips"])
        return low >= factor and high >= low * factor

    def after(self, row):
        """record_wakee(): flips, whether decayed, whether flipped."""
        decayed = row["jiffies"] > row["waker_decay_ts"] + self.trace.meta["hz"]
        flipped = row["waker_last_wakee"] != row["wakee_tag"]
        return (row["waker_flips"] // 2 if decayed else row["waker_flips"]) + flipped, decayed, flipped

    @cached_property
    def waits(self):
        """ns each runnable wakeup waited, by its place in the table; and the switches that ended a wait."""
        events = [
            (row["ts"], 1, row["wakee_pid"], i) for i, row in enumerate(self.wakeups) if row["outcome"] in RUNNABLE
        ]
        events += [(row["ts"], 0, row["next_pid"], i) for i, row in enumerate(self.table("switches"))]
        begun, waits, ended = {}, {}, {}
        for ts, is_wakeup, pid, i in sorted(events):
            if is_wakeup:
                begun[pid] = (ts, i)
            elif pid in begun:
                since, wakeup = begun.pop(pid)
                waits[wakeup] = ended[i] = ts - since
        return waits, ended

    @cached_property
    def migrations(self):
        """Every migration in the order of time: ts, label, mover, orig, dest."""
        announced = [
            (row["ts"], pid)
            for row in self.table("numa")
            if row["event"] in (NumaEvent.MOVE, NumaEvent.SWAP)
            for pid in (row["pid"], row["dst_pid"])
        ]
        names = {row["pid"]: row["comm"] for row in self.table("tasks")}
        found = [
            (row["ts"], row["wakee"], "wakeup", row["wakee_cpu"], row["chosen_cpu"])
            for row in self.wakeups
            if row["outcome"] not in (Outcome.FORK, Outcome.EXEC) and row["chosen_cpu"] != row["wakee_cpu"]
        ]
        for row in self.table("migrations"):
            mover = "balance"
            if row["in_wakeup"]:  # select_task_rq() fell back to another CPU than the one chosen
                mover = "wakeup"
                holder = self.holder(row["pid"], row["ts"])
                own = [w["ts"] for w in self.wakeups if w["wakee"] == holder and w["ts"] <= row["ts"]]
                # none if it began before the recording did, or had chosen the CPU the task was on
                found = [m for m in found if not (own and m[:3] == (own[-1], holder, "wakeup"))]
            elif any(pid == row["pid"] and 0 <= row["ts"] - ts <= 10_000_000 for ts, pid in announced):
                mover = "numa"
            elif row["by_pid"] == row["pid"]:
                mover = "self"
            elif names.get(row["by_pid"], "").startswith("migration/"):
                mover = "stopper"
            found.append((row["ts"], self.holder(row["pid"], row["ts"]), mover, row["orig_cpu"], row["dest_cpu"]))
        return sorted(found, key=lambda m: m[0])
