# SPDX-License-Identifier: GPL-2.0-only
"""Two threads that touch memory of node 0, driven to node 1 for 8 s and then let go: NUMA balancing tries in vain, then
moves them. Prints their pids.
"""

import os
import threading
import time

import numpy as np

MEMORY = np.ones(48 << 20, np.uint8)
END = time.monotonic() + 24


def touch(half):
    while time.monotonic() < END:
        half[::512] += 1


def confine(cpus):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)


def main():
    confine({0, 1, 2, 3})
    threads = [threading.Thread(target=touch, args=(half,)) for half in np.split(MEMORY, 2)]
    for thread in threads:
        thread.start()
    print(*os.listdir("/proc/self/task"), flush=True)
    for wait, cpus in ((4, {4, 5, 6, 7}), (8, set(range(8)))):
        time.sleep(wait)
        confine(cpus)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
