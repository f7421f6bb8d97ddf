# SPDX-License-Identifier: GPL-2.0-only
"""What the box's test of kernels before 5.8 asks inside the box: python old_kernel.py prints one JSON object.

domains: flags (as a number) and name of each CPU's domains, lowest first, as the kernel's own sysctls tell them;
loader: how the probes are loaded; lost: of rings too small, drained twice, by CPU: wakeups tried, lost and kept.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
from wakescope.tracers import probes
from wakescope.tracers.host import cpu_list, read
from wakescope.tracers.offsets import kernel_types

DOMAINS = Path("/proc/sys/kernel/sched_domain")


def domains():
    return {
        cpu.name.removeprefix("cpu"): [[int(read(d / "flags")), read(d / "name")] for d in sorted(cpu.glob("domain*"))]
        for cpu in DOMAINS.glob("cpu*")
    }


def losses():
    kept = {}
    with probes.Probes(probes.plan(kernel_types(), "decision")) as loaded:
        loaded.create_rings(dict.fromkeys(loaded.plan.rings, 4096))
        loaded.attach()
        for again in (False, True):
            subprocess.run(["hackbench", "-l", "5"], check=True, stdout=subprocess.DEVNULL)
            if again:
                loaded.stop(cpu_list(read("/sys/devices/system/cpu/online")))
            for ring in loaded.rings["wakeup"]:
                data = ring.pending()
                seqs = data.reshape(-1, ring.stride)[:, ring.header + 8 : ring.header + 12]
                kept.setdefault(ring.cpu, []).extend(np.ascontiguousarray(seqs).view(np.uint32)[:, 0].tolist())
                ring.release(len(data))
        stats = loaded.stats()
        tried, lost = stats["tried"][:, 0].tolist(), stats["lost"][:, 0].tolist()
        return type(loaded.rings["wakeup"][0]).__name__, {
            cpu: {"tried": tried[cpu], "lost": lost[cpu], "kept": seqs} for cpu, seqs in kept.items()
        }


def main():
    rings, lost = losses()
    print(json.dumps({"domains": domains(), "rings": rings, "lost": lost}))


if __name__ == "__main__":
    main()
