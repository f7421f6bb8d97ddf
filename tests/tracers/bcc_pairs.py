# SPDX-License-Identifier: GPL-2.0-only
"""Records one workload with both loaders attached at once and compares what they say: python bcc_pairs.py [COMMAND…].

Prints one JSON object: tier, records of each loader while both were attached, how many have no partner, and by field
how many pairs differ, and of each program how often it ran and for how many ns on average, by the kernel's own
statistics. Times (ts, ts_exit, jiffies, jiffies_exit) and seq differ by nature and are left out.
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
from wakescope.tracers.domains import cpu_list
from wakescope.tracers.host import read
from wakescope.tracers.offsets import kernel_types

TIMES = {"ts", "ts_exit", "seq", "jiffies", "jiffies_exit"}
PROMPT = 1_000_000  # ns: under single-threaded emulation another CPU's turn takes longer, so none came in between
SIZES = {"wakeup": 1 << 23, "switch": 1 << 21, "event": 1 << 20}


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


def record(command, tier):
    types = kernel_types()
    online = cpu_list(read("/sys/devices/system/cpu/online"))
    with ExitStack() as stack:
        stack.callback(os.close, libbpf.lib().bpf_enable_stats(libbpf.STATS_RUN_TIME))
        both = [stack.enter_context(probes.Probes(probes.plan(types, tier, loader))) for loader in probes.LOADERS]
        spools = [{}, {}]
        for loaded in both:
            loaded.create_rings(SIZES)
            loaded.attach()
        begin = time.monotonic_ns()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            time.sleep(0.05)
            for loaded, spool in zip(both, spools, strict=True):
                drain(loaded, spool)
        end = time.monotonic_ns()
        for loaded, spool in zip(both, spools, strict=True):
            loaded.stop(online)
            drain(loaded, spool)
        lost = [loaded.stats()["lost"].sum() for loaded in both]
        assert not any(lost), f"{lost} records lost: the pairs would not be complete"
        made = {
            name: [table(loaded, spool, kind, name) for loaded, spool in zip(both, spools, strict=True)]
            for kind, name in (("wakeup", "wakeups"), ("switch", "switches"))
        }
        cost = {
            loaded.plan.loader: {
                p: [i.run_cnt, round(i.run_time_ns / i.run_cnt)] for p, i in infos(loaded) if i.run_cnt
            }
            for loaded in both
        }
        return both[0].plan.tier, made, (begin, end), cost


def infos(loaded):
    return [(program, loaded.object.info(program)) for program in loaded.plan.programs]


def compare(pair, span, by):
    """Pairs records that are the n-th of their key; says what is alone and in how many pairs each field differs.

    prompt: pairs of decisions whose two records both began and ended within PROMPT.
    """
    rows = [np.sort(t[(t["ts"] >= span[0]) & (t["ts"] < span[1])], order="ts") for t in pair]
    keys = [pd.DataFrame({n: t[n].astype(np.int64) for n in by}) for t in rows]
    keys = [k.assign(nth=k.groupby(list(by)).cumcount(), row=np.arange(len(k))) for k in keys]
    found = keys[0].merge(keys[1], on=[*by, "nth"])
    a, b = rows[0][found["row_x"].to_numpy()], rows[1][found["row_y"].to_numpy()]
    result = {"rows": [len(t) for t in rows], "alone": [len(t) - len(found) for t in rows], "pairs": _differ(a, b)}
    if "outcome" in a.dtype.names:
        placed = (a["outcome"] == 0) & (b["outcome"] == 0)
        took = np.maximum(a["ts_exit"], b["ts_exit"]) - np.minimum(a["ts"], b["ts"])
        for name, chosen in (("decisions", placed), ("prompt", placed & (took < PROMPT))):
            result[name] = _differ(a[chosen], b[chosen])
    return result


def _differ(a, b):
    fields = {n: np.asarray(a[n] != b[n]).reshape(len(a), -1).any(axis=1) for n in a.dtype.names if n not in TIMES}
    differ = np.any(list(fields.values()), axis=0)
    return {
        "count": len(a),
        "differ": int(differ.sum()),
        "fields": {n: int(f.sum()) for n, f in fields.items() if f.any()},
    }


def main():
    arguments = sys.argv[1:]
    tier = arguments.pop(0)[2:] if arguments and arguments[0].startswith("--") else None
    found, made, span, cost = record(arguments or ["hackbench", "-g", "2", "-l", "2000"], tier)
    keys = {"wakeups": ("cpu", "wakee_tag", "waker_tag"), "switches": ("cpu", "prev_pid", "next_pid")}
    result = {name: compare(pair, span, keys[name]) for name, pair in made.items()}
    print(json.dumps({"tier": found, **result, "cost": cost}))


if __name__ == "__main__":
    main()
