#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Reads a log of dm-log-writes: replay.py LOG list; replay.py LOG IMAGE FIRST LAST

list prints a line for each entry: NUMBER FLAGS SECTOR SECTORS [MARK], with F for flush, U for FUA, D for discard, M for mark. With
IMAGE the entries FIRST to LAST are done to that file. A write is in the log when a flush after it has been done, or when it was FUA
itself: what the entries up to some point make is what a power cut at that point would have left, had the device lost all it may lose.
"""
import os
import struct
import sys

MAGIC, VERSION = 0x6A736677736872, 1
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8


def entries(log):
    """(number, flags, byte offset, bytes, mark, where the data are) of each entry."""
    magic, version, count, sector = struct.unpack("<QQQI", os.pread(log, 28, 0))
    if (magic, version) != (MAGIC, VERSION):
        raise SystemExit("this is no log of dm-log-writes")
    at = sector
    for number in range(count):
        header = os.pread(log, sector, at)
        first, sectors, flags, length = struct.unpack_from("<QQQQ", header)
        at += sector
        mark = header[32 : 32 + length].split(b"\0")[0].decode() if flags & MARK else ""
        yield number, flags, first * sector, sectors * sector, mark, at
        if not flags & (DISCARD | MARK):
            at += sectors * sector


def main():
    log = os.open(sys.argv[1], os.O_RDONLY)
    if sys.argv[2] == "list":
        for number, flags, first, length, mark, _ in entries(log):
            words = "".join(c for c, bit in zip("FUDM", (FLUSH, FUA, DISCARD, MARK)) if flags & bit) or "-"
            print(number, words, first // 512, length // 512, mark)
        return
    image = os.open(sys.argv[2], os.O_WRONLY)
    first, last = int(sys.argv[3]), int(sys.argv[4])
    for number, flags, offset, length, _, data in entries(log):
        if first <= number <= last and length:
            os.pwrite(image, bytes(length) if flags & DISCARD else os.pread(log, length, data), offset)


main()
