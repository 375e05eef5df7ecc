#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Looks for a key in all memory of this host: memory.py KEY

Prints how often it is there. The bytes of the key are nowhere together in this program: it looks for the first ones, and then at those behind.
KEY is the text, which is another thing. Exits with 4 if the kernel does not show its memory.
"""
import base64
import struct
import sys

PT_LOAD, BLOCK, OVERLAP = 1, 1 << 20, 64
# Where x86 has all memory, one byte behind the other.
DIRECT_MAP = range(0xFFFF_8880_0000_0000, 0xFFFF_C880_0000_0000)


def segments(core):
    header = core.read(64)
    start, = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    core.seek(start)
    for kind, _, offset, at, _, length in struct.iter_unpack("<IIQQQQ16x", core.read(size * count)):
        if kind == PT_LOAD and at in DIRECT_MAP:
            yield offset, length


def main(text):
    text = text.split(":")[1]
    first, second = base64.b64decode(text[:12]), base64.b64decode(text[12:24])
    found, zeroes, block = 0, bytes(BLOCK + OVERLAP), bytearray(BLOCK + OVERLAP)
    try:
        core = open("/proc/kcore", "rb", buffering=0)
    except OSError as error:
        print(error)
        sys.exit(4)
    looked = 0
    for offset, length in list(segments(core)):
        for at in range(0, length, BLOCK):
            core.seek(offset + at)
            core.readinto(memoryview(block)[: min(BLOCK + OVERLAP, length - at)])
            looked += BLOCK
            place = block.find(first)
            while place >= 0:
                found += place < BLOCK and block[place + len(first) : place + len(first) + len(second)] == second
                place = block.find(first, place + 1)
            # What was found is not to be found here again.
            block[:] = zeroes
    if looked < 64 << 20:
        print(f"only {looked} bytes were looked at")
        sys.exit(4)
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
