# SPDX-License-Identifier: GPL-2.0
"""Writes and reads a disk from vectors of odd pieces: vectors.py DEVICE COUNT.

The pieces begin at any multiple of the disk's dma_alignment and have any such length; all of them together are whole
blocks. Every other vector has gaps between pages only, as suits a disk with a virt_boundary_mask. The kernel takes a
vector, or refuses it with EINVAL as the disk's limits are; it must not do anything else.
"""

import mmap
import os
import random
import sys


def limit(device, name):
    with open(f"/sys/class/block/{os.path.basename(device)}/queue/{name}", encoding="ascii") as file:
        return int(file.read())


def suited(rng, memory, total, unit):
    """Pieces of memory, `total` bytes in all, in order, with gaps of whole pages between pages."""
    pieces, at = [], rng.randrange(0, 4096, unit)
    while total:
        size = min(total, 4096 - at % 4096 + rng.choice([0, 4096, 3 * 4096]))
        pieces.append(memory[at : at + size])
        at += size + rng.choice([0, 4096])
        total -= size
    return pieces


def odd(rng, memory, total, unit):
    """The same, with gaps anywhere."""
    cuts = sorted(rng.randrange(0, total + 1, unit) for _ in range(rng.randrange(8)))
    pieces, at = [], rng.randrange(0, 4096, unit)
    for first, last in zip([0, *cuts], [*cuts, total]):
        if first != last:
            pieces.append(memory[at : at + last - first])
            at += last - first + rng.choice([0, 0, unit, 512, 4096, rng.randrange(0, 8192, unit)])
    return pieces


def moved(operation, fd, pieces, offset):
    """Whether all of it was moved; not if the vector was refused."""
    try:
        done = operation(fd, pieces, offset)
    except OSError as error:
        if error.errno == 22:
            return False
        raise
    # Up to where the pieces suit the disk.
    return done == sum(len(piece) for piece in pieces)


def main(device, count):
    rng = random.Random(device + str(count))
    block, unit = limit(device, "logical_block_size"), limit(device, "dma_alignment") + 1
    size, shapes = 8 << 20, [suited, odd]
    fd = os.open(device, os.O_RDWR | os.O_DIRECT)
    ours, theirs = memoryview(mmap.mmap(-1, size)), memoryview(mmap.mmap(-1, size))
    plain = mmap.mmap(-1, 2 << 20)
    whole = 0
    for _ in range(count):
        total = rng.choice([block, 8 * block, rng.randrange(block, 1 << 20, block)])
        offset = rng.randrange(0, size - total, block)
        data = rng.randbytes(total)
        pieces, at = rng.choice(shapes)(rng, ours, total, unit), 0
        for piece in pieces:
            piece[:] = data[at : at + len(piece)]
            at += len(piece)
        if not moved(os.pwritev, fd, pieces, offset):
            plain[:total] = data
            assert os.pwritev(fd, [memoryview(plain)[:total]], offset) == total
        else:
            whole += 1
        pieces = rng.choice(shapes)(rng, theirs, total, unit)
        if moved(os.preadv, fd, pieces, offset):
            whole += 1
            assert b"".join(pieces) == data, f"{total} bytes at {offset} are not what was written"
    print(f"# {whole} of {2 * count} vectors were taken as a whole")
    assert whole > count // 2, "hardly any vector was taken"


main(sys.argv[1], int(sys.argv[2]))
