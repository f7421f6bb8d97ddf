# SPDX-License-Identifier: GPL-2.0-only
"""Two threads that touch memory of node 0, driven to node 1 for 8 s and then let go: NUMA balancing tries in vain, then
moves them, or their memory. Again with new memory until it has moved one of them, which the file named says with a line
"moved" and its pid. Prints the pids of all threads.
"""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROUNDS = 8
NODE_0, NODE_1 = {0, 1, 2, 3}, {4, 5, 6, 7}


class Hog:
    def __init__(self):
        self.ended = False
        self.memory = self.allocate()
        self.threads = [threading.Thread(target=self.touch, args=(part,)) for part in range(2)]

    def allocate(self):
        """24 MB for each thread on the node of whoever asks, since it touches them first."""
        return np.split(np.ones(48 << 20, np.uint8), 2)

    def touch(self, part):
        while not self.ended:
            self.memory[part][::512] += 1


def confine(cpus):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)


def main(said):
    confine(NODE_0)
    hog = Hog()
    for thread in hog.threads:
        thread.start()
    pids = os.listdir("/proc/self/task")
    print(*pids, flush=True)
    for _ in range(ROUNDS):
        confine(NODE_0)
        hog.memory = hog.allocate()
        for seconds, cpus in ((4, NODE_1), (8, NODE_0 | NODE_1)):
            time.sleep(seconds)
            confine(cpus)
        time.sleep(12)
        if any(f"moved {pid}\n" in said.read_text() for pid in pids):
            break
    hog.ended = True
    for thread in hog.threads:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
