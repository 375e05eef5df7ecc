#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Wants memory when no path is live any more: want.py FILE STATE... For swap.sh.

It does so while there is a FILE; a STATE is the file with the state of a path. One process wants all memory. Threads of another one want
objects of the kernel of those sizes that the messages of the connection manager have, one thread after the other, so that those are gone,
too, that others free meanwhile.
"""
import ctypes
import mmap
import os
import signal
import sys
import threading
import time

ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
KEYCTL_CLEAR, THREAD_KEYRING = 7, -1
MCL_CURRENT, MCL_FUTURE = 1, 2
MIB = 1 << 20
libc = ctypes.CDLL(None)
flag, *states = sys.argv[1:]


def wanted():
    return os.path.exists(flag)


def live():
    for state in states:
        with open(state, encoding="ascii") as file:
            if "live" in file.read():
                return True
    return False


def wait(condition):
    while not condition():
        time.sleep(0.05)


def memory():
    """Takes memory that cannot be swapped, until there is none."""
    # Others that need memory must not be killed for this.
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    while True:
        wait(lambda: wanted() and not live())
        taken = []
        while wanted() and len(taken) < 1024:
            taken.append(mmap.mmap(-1, MIB // 4))
        print(len(taken) / 4, "MiB", flush=True)
        wait(lambda: not wanted())
        for chunk in taken:
            chunk.close()


def add(count, size):
    return libc.syscall(ADD_KEY, b"user", b"%d" % count, bytes(size), size, THREAD_KEYRING) >= 0


lost, over = threading.Event(), threading.Event()


def objects(number):
    """Takes objects until there are none, or until the quota of keys ends it."""
    while True:
        lost.wait()
        time.sleep(1 + number / 10)
        count = 1
        # The kernel adds 24 bytes: a received message takes an object of 512 bytes, what handles it
        # one of 256 or 512.
        while wanted() and add(count, 210) and add(count + 1, 440):
            count += 2
        over.wait()
        libc.syscall(KEYCTL, KEYCTL_CLEAR, THREAD_KEYRING)


def locked():
    """Nothing here may wait for swap, and a child does not inherit that."""
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE):
        raise SystemExit("the memory cannot be locked")


def main():
    locked()
    if not add(0, 1):
        raise SystemExit("no keys")
    if not os.fork():
        # It ends with its parent.
        libc.prctl(1, signal.SIGKILL)
        locked()
        memory()
    threading.stack_size(64 << 10)
    for number in range(130):
        threading.Thread(target=objects, args=(number,), daemon=True).start()
    print("begun", flush=True)
    while True:
        wait(lambda: wanted() and not live())
        over.clear()
        lost.set()
        wait(lambda: not wanted())
        lost.clear()
        over.set()


main()
