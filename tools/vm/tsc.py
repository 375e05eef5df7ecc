# SPDX-License-Identifier: GPL-2.0
"""This host's time stamp counter; part of tools/vm/harness.py."""
import ctypes
import functools
import mmap
import platform
import time

# rdtsc; shl rdx, 32; or rax, rdx; ret
READ_TSC = bytes.fromhex("0f3148c1e2204809d0c3")


@functools.cache
def khz():
    """The frequency of this host's time stamp counter, which an emulated one has, too; None if it has none.

    A guest that measures it while the host is busy may be wrong by any factor, and has such a clock then.
    """
    if platform.machine() != "x86_64":
        return None
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as room:
        room.write(READ_TSC)
        code = ctypes.c_char.from_buffer(room)
        read_tsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(code))

        def look():
            """Both clocks at the same time, as nearly as can be seen."""
            looks = []
            for _ in range(20):
                before, ticks, after = time.monotonic_ns(), read_tsc(), time.monotonic_ns()
                looks.append((after - before, (before + after) / 2, ticks))
            return min(looks)

        _, ns, ticks = look()
        time.sleep(0.05)
        _, later_ns, later_ticks = look()
        del code
    return round((later_ticks - ticks) * 1e6 / (later_ns - ns))
