# SPDX-License-Identifier: GPL-2.0-only
"""Records one workload with both loaders attached at once, bcc twice: python bcc_pairs.py [--TIER] [--COUNT] [COMMAND…].

Every hook runs bcc's program, libbpf's, and another of bcc's, in this order, so that what libbpf read lies between two
looks of bcc. Where both looks give one value, libbpf's must be that value; where they differ it moved meanwhile, since
other CPUs write while three programs read. The return of a function alone runs libbpf's program first (an fexit lies
inside a kretprobe): there the look before is the one at the entry of the second bcc.

The command is run again until COUNT decisions were seen. Prints one JSON object: tier, records of each, how many have
no partner, and by field how many triples are not all alike, and how many of those no move explains. Times (ts, ts_exit,
jiffies, jiffies_exit) and seq differ by nature and are left out. cost: of each program how often it ran and for how many
ns on average, by the kernel's own statistics.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pandas as pd
from wakescope.tracers import libbpf, probes
from wakescope.tracers.host import cpu_list, read
from wakescope.tracers.offsets import kernel_types

TIMES = {"ts", "ts_exit", "seq", "jiffies", "jiffies_exit"}
SIZES = {"wakeup": 1 << 23, "switch": 1 << 21, "event": 1 << 20}
ORDER = ("bcc", "libbpf", "bcc")
KEYS = {"wakeups": ("cpu", "wakee_tag", "waker_tag"), "switches": ("cpu", "prev_pid", "next_pid")}
SIDES = ("load", "nr_running", "nr_idle_scan", "has_idle_cores")
AT_EXIT = {f"{side}_{what}_exit": f"{side}_{what}" for side in ("this", "prev") for what in SIDES}
AT_EXIT |= {"idle_exit": "idle", "sched_idle_exit": "sched_idle"}
MASKS = {"idle", "idle_exit", "sched_idle", "sched_idle_exit"}


def drain(loaded, spools):
    for kind, rings in loaded.rings.items():
        for ring in rings:
            data = ring.pending()
            spools.setdefault(kind, []).append(bytes(data))
            ring.release(len(data))


def table(loaded, spools, kind, name):
    dtype, stride = loaded.dtypes(kind)[name], loaded.rings[kind][0].stride
    rows = np.frombuffer(b"".join(spools[kind]), np.uint8).reshape(-1, stride)[:, 8 : 8 + dtype.itemsize]
    return np.ascontiguousarray(rows).view(dtype)[:, 0]


def enter_last(loaded):
    """Make the entry of select_task_rq_fair() a kprobe behind the call that runs fentry programs, 5 bytes long."""
    module = loaded.object._module
    attach = module.attach_kprobe

    def attach_kprobe(event, fn_name):
        if event != b"select_task_rq_fair":
            return attach(event=event, fn_name=fn_name)
        try:
            return attach(event=event, event_off=5, fn_name=fn_name)
        except Exception:  # no instruction begins there
            return attach(event=event, event_off=9, fn_name=fn_name)  # the call comes after an endbr64

    module.attach_kprobe = attach_kprobe


def record(command, tier, count):
    types = kernel_types()
    online = cpu_list(read("/sys/devices/system/cpu/online"))
    with ExitStack() as stack:
        stack.callback(os.close, libbpf.lib().bpf_enable_stats(libbpf.STATS_RUN_TIME))
        looks = [stack.enter_context(probes.Probes(probes.plan(types, tier, loader))) for loader in ORDER]
        enter_last(looks[2])
        spools = [{} for _ in looks]
        for loaded in looks:
            loaded.create_rings(SIZES)
            loaded.attach()
        begin = time.monotonic_ns()
        while decisions(looks[0], spools[0], begin) < count:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while process.poll() is None:
                time.sleep(0.05)
                for loaded, spool in zip(looks, spools, strict=True):
                    drain(loaded, spool)
        end = time.monotonic_ns()
        for loaded, spool in zip(looks, spools, strict=True):
            loaded.stop(online)
            drain(loaded, spool)
        lost = [int(loaded.stats()["lost"].sum()) for loaded in looks]
        assert not any(lost), f"{lost} records lost: the triples would not be complete"
        made = {
            name: [table(loaded, spool, kind, name) for loaded, spool in zip(looks, spools, strict=True)]
            for kind, name in (("wakeup", "wakeups"), ("switch", "switches"))
        }
        cost = {
            loaded.plan.loader: {
                p: [i.run_cnt, round(i.run_time_ns / i.run_cnt)] for p, i in infos(loaded) if i.run_cnt
            }
            for loaded in looks[1:]
        }
        return looks[0].plan.tier, made, (begin, end), cost


def decisions(loaded, spools, begin):
    if "wakeup" not in spools:
        return 0
    rows = table(loaded, spools, "wakeup", "wakeups")
    return int(((rows["outcome"] == 0) & (rows["ts"] >= begin)).sum())


def infos(loaded):
    return [(program, loaded.object.info(program)) for program in loaded.plan.programs]


def matched(looks, span, by):
    """The records of the three looks that are the n-th of their key in each, and how many of each are not."""
    rows = [np.sort(t[(t["ts"] >= span[0]) & (t["ts"] < span[1])], order="ts") for t in looks]
    keys = [pd.DataFrame({n: t[n].astype(np.int64) for n in by}) for t in rows]
    keys = [k.assign(nth=k.groupby(list(by)).cumcount(), **{f"row{i}": np.arange(len(k))}) for i, k in enumerate(keys)]
    found = keys[0].merge(keys[1], on=[*by, "nth"]).merge(keys[2], on=[*by, "nth"])
    return [t[found[f"row{i}"].to_numpy()] for i, t in enumerate(rows)], [len(t) - len(found) for t in rows]


def compare(looks, tier):
    """Of matched records: how many, how many are not alike in all fields, and by field how many, unexplained ones too."""
    before, between, after = looks
    placed = (between["outcome"] == 0) if "outcome" in between.dtype.names else np.zeros(len(between), bool)
    differ, fields = np.zeros(len(between), bool), {}
    for name in between.dtype.names:
        if name in TIMES:
            continue
        first = before[name]
        if tier == "decision" and name in AT_EXIT:
            first = np.where(placed.reshape(-1, *[1] * (first.ndim - 1)), after[AT_EXIT[name]], first)
        ends, middle = (first, after[name]), between[name]
        odd = ~(ends[0] ^ ends[1]) & (middle ^ ends[0]) != 0 if name in MASKS else (ends[0] == ends[1]) & (middle != ends[0])
        unlike = (before[name] != middle) | (after[name] != middle)
        odd, unlike = (flat(rows) for rows in (odd, unlike))
        differ |= unlike
        if unlike.any() or odd.any():
            fields[name] = {"differ": int(unlike.sum()), "unexplained": int(odd.sum())}
    return {"count": len(between), "decisions": int(placed.sum()), "differ": int(differ.sum()), "fields": fields}


def flat(rows):
    return np.asarray(rows).reshape(len(rows), -1).any(axis=1)


def main():
    arguments, tier, count = sys.argv[1:], None, 20_000
    while arguments and arguments[0].startswith("--"):
        option = arguments.pop(0)[2:]
        tier, count = (tier, int(option)) if option.isdigit() else (option, count)
    found, made, span, cost = record(arguments or ["hackbench", "-g", "2", "-l", "1000"], tier, count)
    result = {}
    for name, tables in made.items():
        looks, alone = matched(tables, span, KEYS[name])
        result[name] = {"alone": alone, **compare(looks, found)}
        if os.environ.get("KEEP"):
            np.savez(os.environ["KEEP"] + name, *looks)
    print(json.dumps({"tier": found, **result, "cost": cost}))


if __name__ == "__main__":
    main()
