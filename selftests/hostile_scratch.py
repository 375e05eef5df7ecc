#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A client that asks for scratch regions as it should not, and uses them so: hostile_scratch.py SERVER scratch

The cases are like those of hostile.py, on a server with the exports "e", which admits everybody, and "host", which lets the host "hostile"
read.
"""
import sys

sys.dont_write_bytecode = True

import struct
import time

from hostile import (
    BAD_STATE, LIST, MALFORMED, NO_MEMORY, NO_SUCH_EXPORT, NOT_ADMITTED, OK, OLDEST, PATIENCE, PING, PONG, SCRATCH, SOON, WR_RDMA_READ,
    WR_RDMA_WRITE, Connection, Failed, Session, ask, case, cases, expect, login, main, message, request, works)

LARGEST = 64 << 10


def scratch(export=b"e", size=4096, host_id=b"h" * 16, host=b"hostile"):
    return message(SCRATCH, struct.pack("<16s64s64sI4x", host_id, host, export, size))


def region(control, **wanted):
    """Address, length and rkey of a scratch region."""
    code, reply = ask(control, scratch(**wanted))
    expect("the status of a scratch region", code, OK)
    expect("the length of the reply", len(reply), 136)
    addr, length, rkey, flags, rest = struct.unpack_from("<QIIII", reply, 112)
    expect("what is reserved", rest, 0)
    expect("the flags", flags & ~1, 0)
    expect("whether it begins at a multiple of 8", addr % 8, 0)
    return addr, length, rkey


def usable(control, addr, length, rkey):
    """What is written to the first and to the last bytes is read back."""
    for at in addr, addr + length - 4096:
        said = struct.pack("<Q", at) * 512
        control.memory[control.data : control.data + 4096] = said
        expect("a write", control.rdma(WR_RDMA_WRITE, at, rkey), 0)
        control.memory[control.data : control.data + 4096] = bytes(4096)
        expect("a read", control.rdma(WR_RDMA_READ, at, rkey), 0)
        if control.memory[control.data : control.data + 4096] != said:
            raise Failed("what is read is not what was written")


@cases("scratch", 0,
       ("for who may write", b"e", 4096),
       ("for who may only read", b"host", 8192),
       ("of the largest size", b"e", LARGEST))
def scratch_works(export, size):
    control = Connection(request())
    addr, length, rkey = region(control, export=export, size=size)
    expect("the length", length, size)
    control.memory[control.data : control.data + 4096] = b"?" * 4096
    for at in range(0, length, 4096):
        expect("a read", control.rdma(WR_RDMA_READ, addr + at, rkey), 0)
        expect("what is there", control.memory[control.data : control.data + 4096], bytes(4096))
    usable(control, addr, length, rkey)
    control.send(message(PING))
    expect("the answer to a ping", struct.unpack_from("<H", control.receive()[0]), (PONG,))
    usable(control, addr, length, rkey)


@cases("scratch", 0,
       ("of no size", scratch(size=0), MALFORMED),
       ("of a byte", scratch(size=1), MALFORMED),
       ("of more than pages", scratch(size=4097), MALFORMED),
       ("that is too large", scratch(size=LARGEST + 4096), MALFORMED),
       ("that is huge", scratch(size=1 << 31), MALFORMED),
       ("of all there could be", scratch(size=(1 << 32) - 4096), MALFORMED),
       ("that is too short", message(SCRATCH, scratch()[8:-1]), MALFORMED),
       ("that is too long", message(SCRATCH, scratch()[8:] + b"x"), MALFORMED),
       ("of nobody", scratch(host_id=bytes(16)), MALFORMED),
       ("of a host without a name", scratch(host=b""), MALFORMED),
       ("by an export without a name", scratch(b""), MALFORMED),
       ("by an export with a slash", scratch(b"../x"), MALFORMED),
       ("by an export that is not there", scratch(b"nothing"), NO_SUCH_EXPORT),
       ("by an export that does not admit the host", scratch(b"host", host=b"other"), NOT_ADMITTED))
def scratch_refused(asked, code):
    control = Connection(request())
    expect("the status", ask(control, asked)[0], code)
    # It may try again.
    usable(control, *region(control))


@case("scratch", "on a connection of an older version")
def scratch_older():
    control = Connection(request(oldest=OLDEST, newest=OLDEST))
    expect("the status", ask(control, scratch())[0], MALFORMED)
    expect("the status of a login", ask(control, login())[0], OK)


@case("scratch", "twice, and a login with it")
def scratch_twice():
    control = Connection(request())
    first = region(control, size=LARGEST)
    for asked in scratch(), scratch(size=LARGEST), login(), login(b"nothing"):
        expect("the status", ask(control, asked)[0], BAD_STATE)
    usable(control, *first)
    # At once: the second one does not wait for the first.
    hasty = Connection(request())
    for _ in range(3):
        hasty.send(scratch())
    codes = [struct.unpack_from("<HHIH", hasty.receive()[0])[3] for _ in range(3)]
    expect("the status of three at once", codes, [OK, BAD_STATE, BAD_STATE])


@case("scratch", "after a login")
def scratch_logged_in():
    session = Session()
    io = session.io()
    expect("the status", session.ask(scratch())[0], BAD_STATE)
    works(io)


@cases("scratch", 0,
       ("a read beyond it", WR_RDMA_READ, lambda addr, length, rkey: (addr + length - 512, rkey)),
       ("a read before it", WR_RDMA_READ, lambda addr, length, rkey: (addr - 512, rkey)),
       ("a write beyond it", WR_RDMA_WRITE, lambda addr, length, rkey: (addr + length - 512, rkey)),
       ("a write with an unknown key", WR_RDMA_WRITE, lambda addr, length, rkey: (addr, rkey ^ 0x5A)))
def scratch_beyond(opcode, make):
    control = Connection(request())
    mine = region(control)
    usable(control, *mine)
    if control.rdma(opcode, *make(*mine)) == 0:
        raise Failed("it is done")
    control.must_end()


@cases("scratch", 0, ("a read of that of another connection", WR_RDMA_READ), ("a write to that of another connection", WR_RDMA_WRITE))
def scratch_foreign(opcode):
    control, other = Connection(request()), Connection(request())
    region(control)
    addr, length, rkey = region(other)
    usable(other, addr, length, rkey)
    if control.rdma(opcode, addr, rkey) == 0:
        raise Failed("it is done")
    control.must_end()
    usable(other, addr, length, rkey)


@case("scratch", "more than a host may have, and again when the others are gone")
def scratch_many():
    controls = [Connection(request()) for _ in range(6)]
    regions = [region(control, size=LARGEST) for control in controls[:5]]
    # Whatever name it has: no entry admits it.
    for name in b"hostile", b"another":
        expect("the status of one more", ask(controls[5], scratch(host=name))[0], NO_MEMORY)
    # One that has an entry is another one.
    usable(controls[5], *region(controls[5], export=b"host", size=LARGEST))
    for control, own in zip(controls, regions):
        usable(control, *own)
    for control in controls[:2]:
        control.close()
    end = time.monotonic() + SOON
    # The server has to notice.
    while True:
        again = Connection(request())
        if ask(again, scratch(size=LARGEST))[0] == OK:
            return
        again.close()
        if time.monotonic() > end:
            raise Failed("the memory does not come back")
        time.sleep(0.1)


@case("scratch", "connections that die with one, and with requests under way")
def scratch_death():
    for number in range(12):
        control = Connection(request())
        addr, _, rkey = region(control, size=LARGEST)
        for index in range(8 * (number % 2)):
            opcode = WR_RDMA_WRITE if index % 2 else WR_RDMA_READ
            control.post(opcode, control.data, 32 << 10, addr + 4096 * index, rkey)
        control.close()
        # A source may have so many in a second.
        time.sleep(0.1)
    works(Session().io())


@case("scratch", "for longer than one may stay without a login")
def scratch_stay():
    control = Connection(request())
    mine = region(control)
    start = time.monotonic()
    while not control.ended and time.monotonic() < start + 30 * PATIENCE:
        control.send(message(PING))
        control.until(lambda: control.ended or control.inbox, "neither an answer nor an end", seconds=2 * SOON)
        control.inbox.clear()
        time.sleep(0.5)
    took = time.monotonic() - start
    if not control.ended or took < 8:
        raise Failed(f"the connection ends after {took:.1f} s: {control.ended}")
    # Nobody else has it.
    other = Connection(request())
    expect("the status of a list", ask(other, message(LIST, struct.pack("<16s64sI4x", b"h" * 16, b"hostile", 0)))[0], OK)
    if other.rdma(WR_RDMA_READ, mine[0], mine[2]) == 0:
        raise Failed("another one reads it")


@case("scratch", "for longer than one may stay, by taking answers late")
def scratch_late():
    control = Connection(request(), receives=1)
    region(control)
    for _ in range(8):
        control.send(message(PING))
    start = said = time.monotonic()
    while not control.ended and time.monotonic() < start + 30 * PATIENCE:
        # In time: the server's device sends it again for some seconds.
        control.take_late(1.5)
        # The server hears something all the time.
        if time.monotonic() > said + 1:
            control.send(message(PING))
            said = time.monotonic()
        time.sleep(0.01)
    took = time.monotonic() - start
    if not control.ended or took > 20 * PATIENCE:
        raise Failed(f"the connection ends after {took:.1f} s: {control.ended}")


@case("scratch", "nothing but RDMA: the server hears nothing")
def scratch_silent():
    control = Connection(request())
    mine = region(control)
    start = time.monotonic()
    while not control.ended and time.monotonic() < start + 30 * PATIENCE:
        control.sent.clear()
        control.post(WR_RDMA_READ, control.data, 4096, mine[0], mine[2])
        control.until(lambda: control.sent or control.ended, "a work request does not complete")
        time.sleep(0.5)
    took = time.monotonic() - start
    if not control.ended or took < 3:
        raise Failed(f"the connection ends after {took:.1f} s: {control.ended}")


if __name__ == "__main__":
    main(*sys.argv[1:])
