#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A client with several paths, lives and epochs: sessions.py SERVER GROUP

Does the cases of a group as hostile.py does its own, but keeps to the protocol; what the server has to do is what Documentation/sessions.rst
says. The server is this host: what an administrator does there, the cases do in its configfs.

Long: most of it is a list of cases.
"""
import sys

sys.dont_write_bytecode = True

import os
import struct
import threading
import time

import hostile
from hostile import (
    BUSY, EVICTED, EXPORT_DISABLED, EXTENT, FENCE, FENCED, FLUSHED, LOGOUT, NOT_ADMITTED, NO_WRITES, OK, PING, PONG, READ_ONLY, SOON,
    SUPERSEDED, WR_RDMA_READ, WR_RDMA_WRITE, Connection, Failed, Refused, Session, ask, expect, inline_read, inline_write, login, main, message, refused, request,
    status_of, works)

CONFIG = "/sys/kernel/config/farblk/exports/"
COUNTERS = "/sys/kernel/debug/farblk/server/counters"
# How long the device of export "slow" takes for everything.
SLOW = float(os.environ.get("SLOW_MS", 0)) / 1000
FOR_EVER = 2**32 - 1


def show(path):
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def store(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(value + "\n")


def counter(name):
    return int(dict(line.split() for line in show(COUNTERS).splitlines())[name])


def clients(export, wanted):
    expect(f"the clients of {export}", show(f"{CONFIG}{export}/clients"), str(wanted))


def away(export, wanted):
    expect(f"the clients of {export} that are away", show(f"{CONFIG}{export}/clients_away"), str(wanted))


def soon(condition, why, seconds=SOON):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failed(why)
        time.sleep(0.05)


def with_device(count):
    """So many commands are with the device of export "slow"."""
    most = 0
    end = time.monotonic() + SOON
    while most < count:
        most = max(most, sum(map(int, show("/sys/class/block/fbslow/inflight").split())))
        if time.monotonic() > end:
            raise Failed(f"{most} commands get to the device, not {count}")
        time.sleep(0.05)


class Map:
    """A map: what all its logins have in common."""

    # Another one for each case: its first map takes the place of what the case before has left.
    boot = 1

    def __init__(self, export, **fields):
        self.export = export
        self.fields = {"map_id": os.urandom(16), "incarnation": 7, "boot": Map.boot, **fields}

    def path(self, path=0, epoch=1, **fields):
        return Session(self.export, **{**self.fields, "path": path, "epoch": epoch, **fields})

    def refusal(self, code, *path, **fields):
        refused(code, self.path, *path, **fields)

    def text(self, **fields):
        """The words of a refusal."""
        _, reply = ask(Connection(request()), login(self.export, **{**self.fields, **fields}))
        return reply[16:112].rstrip(b"\0").decode()


def vanish(session, *ios):
    """The client is gone without a word, as far as the server hears of it."""
    for io in ios:
        io.close()
    session.control.close()


def gone(session, *ios):
    for connection in (session.control, *ios):
        connection.must_end()


def tell(session, kind, body=b""):
    """Sends what is answered by an event."""
    session.control.send(message(kind, body))


def event(session, kind):
    """The body of the next event, which has to be of that kind."""
    got, _ = session.control.receive()
    head = struct.unpack_from("<HHI", got)
    expect("kind, length and sequence of the event", head, (kind, len(got), 0))
    return got[8:]


def alive(session):
    tell(session, PING)
    expect("a pong", event(session, PONG), b"")


def fence(session, path, epoch):
    tell(session, FENCE, struct.pack("<QB7x", epoch, path))


def fenced(session, path, epoch):
    expect("path and epoch of the fence", struct.unpack("<QB7x", event(session, FENCED)), (epoch, path))


def cases(group, *table):
    """A case for each (words, argument...) of the table."""

    def add(function):
        def begin(*arguments):
            Map.boot += 1
            function(*arguments)

        hostile.cases(group, 0, *table)(begin)
        return function

    return add


def case(group, words):
    return cases(group, (words,))


# --- epochs and fences ----------------------------------------------------------------------------


@case("epochs", "an epoch that is over is refused, a newer one ends the one before")
def epochs():
    m = Map(b"one")
    first = m.path(epoch=5)
    io = first.io()
    works(io)
    for epoch in 5, 4, 1:
        m.refusal(SUPERSEDED, epoch=epoch)
    works(io)
    second = m.path(epoch=6)
    gone(first, io)
    works(second.io())
    expect("the reservation key", second.key, first.key)
    clients("one", 1)
    # As well when nothing of it is left.
    vanish(second)
    soon(lambda: show(CONFIG + "one/clients") == "0", "it is still there")
    m.refusal(SUPERSEDED, epoch=6)
    third = m.path(epoch=7, resume=first.key)
    expect("the reservation key", third.key, first.key)


@case("epochs", "a newer epoch is let in when the I/O of the one before has ended")
def epoch_after_io():
    m = Map(b"slow")
    first = m.path()
    io = first.io()
    start = time.monotonic()
    io.send(inline_write(b"1" * 4096, offset=0))
    with_device(1)
    second = m.path(epoch=2)
    if time.monotonic() - start < SLOW:
        raise Failed("it is let in before")
    io = second.io()
    io.send(inline_read(offset=0))
    expect("what is there", io.receive()[0][:2], b"11")


@case("epochs", "paths beside each other")
def paths():
    m = Map(b"one")
    sessions = [m.path(path) for path in range(8)]
    for path, session in enumerate(sessions):
        works(session.io(), tag=path)
        alive(session)
    clients("one", 1)
    fence(sessions[0], 7, 1)
    fenced(sessions[0], 7, 1)
    gone(sessions[7])
    m.refusal(SUPERSEDED, path=7, epoch=1)
    m.path(7, 2)
    for session in sessions[:7]:
        alive(session)


@case("fences", "a fence is answered when the I/O of the path has ended, and other messages before")
def fence_waits():
    before = counter("fences")
    m = Map(b"slow")
    lost, other = m.path(0), m.path(1)
    old, new = lost.io(), other.io()
    start = time.monotonic()
    for tag in range(8):
        old.send(inline_write(b"1" * 4096, offset=0, tag=tag))
    with_device(1)
    fence(other, 0, 1)
    alive(other)
    if time.monotonic() - start > SLOW:
        raise Failed("this machine is too slow")
    fenced(other, 0, 1)
    if time.monotonic() - start < SLOW:
        raise Failed("the fence is there before the I/O has ended")
    gone(lost, old)
    expect("the status of a write", status_of(new, inline_write(b"2" * 4096, offset=0)), OK)
    time.sleep(2 * SLOW)
    new.send(inline_read(offset=0, tag=1))
    expect("what is there", new.receive()[0], b"2" * 4096)
    expect("the fences that are counted", counter("fences") - before, 1)
    m.refusal(SUPERSEDED, path=0, epoch=1)


@case("fences", "a fence of what is not there, and what comes after it")
def fence_nothing():
    m = Map(b"one")
    session = m.path()
    fence(session, 3, 9)
    fenced(session, 3, 9)
    m.refusal(SUPERSEDED, path=3, epoch=9)
    third = m.path(3, 10)
    # An older epoch than is there.
    fence(session, 3, 9)
    fenced(session, 3, 9)
    alive(third)
    # One that is to come.
    fence(session, 3, 2**64 - 1)
    fenced(session, 3, 2**64 - 1)
    gone(third)
    m.refusal(SUPERSEDED, path=3, epoch=2**64 - 1)


@case("fences", "a path that fences itself ends")
def fence_self():
    m = Map(b"one")
    session = m.path(epoch=3)
    fence(session, 0, 3)
    gone(session)
    m.path(epoch=4)


@case("fences", "a fence of one map is none of another's")
def fence_foreign():
    one, other = Map(b"many").path(), Map(b"many").path()
    fence(one, 1, 5)
    fenced(one, 1, 5)
    fence(one, 0, 0)
    fenced(one, 0, 0)
    alive(other)
    works(other.io())


@case("fences", "memory that was granted on a fenced path")
def fence_ram():
    m = Map(b"ram")
    lost, other = m.path(0), m.path(1)
    io, beside = lost.io(), other.io()
    (addr, _, rkey), *_ = lost.grants()
    expect("what is granted on the other path", other.grants()[0], lost.grants()[0])
    expect("a read", io.rdma(WR_RDMA_READ, addr, rkey), 0)
    fence(other, 0, 1)
    fenced(other, 0, 1)
    gone(lost, io)
    expect("a read on the other path", beside.rdma(WR_RDMA_READ, addr, rkey), 0)


# --- who has an export ----------------------------------------------------------------------------


@case("reservation", "a map that was enabled anew takes the place of what it was")
def incarnations():
    m = Map(b"one")
    past = [m.path(path) for path in range(2)]
    io = past[0].io()
    works(io)
    present = m.path(incarnation=8)
    gone(past[0], io)
    gone(past[1])
    expect("that the reservation key is another", present.key != past[0].key, True)
    # What it was comes late.
    m.refusal(EVICTED, epoch=2, resume=past[0].key)
    alive(present)
    clients("one", 1)


@cases("reservation",
       ("a kernel that began anew takes the place of all its maps", b"many"),
       ("and of another one of its maps", b"one"))
def boots(export):
    past = [Map(export, boot=1 << 60).path() for _ in range(1 if export == b"one" else 3)]
    io = past[0].io()
    works(io)
    stranger = Map(b"many", host_id=b"i" * 16, boot=9).path()
    present = Map(export).path()
    gone(past[0], io)
    for session in past[1:]:
        gone(session)
    alive(present)
    alive(stranger)


@case("reservation", "a map that is away keeps its place, and then no longer")
def takeover():
    before = counter("takeovers")
    one, other = Map(b"one", timeout_ms=1000), Map(b"one")
    session = one.path()
    other.refusal(BUSY)
    expect("the words", other.text(), "in use by hostile")
    vanish(session)
    soon(lambda: other.text().startswith("in use by hostile, away for "), "it is not away")
    clients("one", 0)
    away("one", 1)
    # It is back.
    back = one.path(epoch=2, resume=session.key)
    away("one", 0)
    expect("the reservation key", back.key, session.key)
    other.refusal(BUSY)
    start = time.monotonic()
    vanish(back)
    while True:
        try:
            taken = other.path()
            break
        except Refused as refusal:
            expect("the refusal", refusal.args[0], BUSY)
        if time.monotonic() - start > 6 + SOON:
            raise Failed("it keeps its place for ever")
        time.sleep(0.2)
    if time.monotonic() - start < 6:
        raise Failed("it loses its place before 6 s")
    expect("the takeovers that are counted", counter("takeovers") - before, 1)
    away("one", 0)
    one.refusal(EVICTED, epoch=3, resume=back.key)
    one.refusal(BUSY, epoch=3)
    # For good.
    expect("the status of the logout", taken.ask(message(LOGOUT))[0], OK)
    one.refusal(EVICTED, epoch=4, resume=back.key)
    anew = one.path(epoch=1, incarnation=8)
    expect("that the reservation key is another", anew.key in (back.key, taken.key), False)


@case("reservation", "a map that holds its I/O for ever keeps its place, until the export is disabled")
def for_ever():
    one, other = Map(b"one", timeout_ms=FOR_EVER), Map(b"one")
    session = one.path()
    vanish(session)
    time.sleep(7)
    other.refusal(BUSY)
    store(CONFIG + "one/enable", "0")
    other.refusal(EXPORT_DISABLED)
    store(CONFIG + "one/enable", "1")
    other.path()
    one.refusal(EVICTED, epoch=2, resume=session.key)


@case("reservation", "a map that says that it leaves does not keep its place")
def leaves():
    one = Map(b"one", timeout_ms=FOR_EVER)
    first, second = one.path(0), one.path(1)
    expect("the status of the logout", first.ask(message(LOGOUT))[0], OK)
    Map(b"one").refusal(BUSY)
    vanish(second)
    soon(lambda: show(CONFIG + "one/clients") == "0", "it is still there")
    Map(b"one").path()


# That another device ends it is for refusals.sh to see.
@case("reservation", "what a map has outlives the export's being disabled, and another name of its device")
def disabled():
    m = Map(b"one")
    session = m.path()
    enable = CONFIG + "one/enable"
    store(enable, "0")
    gone(session)
    store(enable, "1")
    back = m.path(epoch=2, resume=session.key)
    expect("the reservation key", back.key, session.key)
    store(enable, "0")
    path = show(CONFIG + "one/device_path")
    store(CONFIG + "one/device_path", "/dev/../" + path[1:])
    store(enable, "1")
    renamed = m.path(epoch=3, resume=session.key)
    expect("the reservation key", renamed.key, session.key)
    store(enable, "0")
    store(CONFIG + "one/device_path", path)
    store(enable, "1")


@case("reservation", "a map of a server that began anew goes on, be its reservation key known or not")
def unknown_key():
    session = Map(b"fresh").path(resume=0x1234)
    expect("the reservation key", session.key, 0x1234)
    # As long as it has not gone on, nobody knows which of the two the server had.
    Map(b"fresh").refusal(BUSY, resume=0x1235)
    alive(session)
    Map(b"fresh").refusal(EVICTED, resume=0x1235)


@case("reservation", "an export of many maps evicts none")
def shared():
    one, other = Map(b"many"), Map(b"many")
    sessions = [one.path(resume=0x1234), other.path()]
    expect("the reservation key", sessions[0].key, 0x1234)
    third = Map(b"many").path()
    expect("the reservation key", third.key, sessions[1].key)
    vanish(sessions[1])
    back = other.path(epoch=2, resume=sessions[1].key)
    expect("the reservation key", back.key, sessions[1].key)
    clients("many", 3)


@case("reservation", "a host that is removed loses what its maps had")
def evicted():
    before = counter("evictions")
    m = Map(b"host", timeout_ms=FOR_EVER)
    session = m.path(access=0)
    expect("the connected maps of the host", show(CONFIG + "host/hosts/hostile/connected"), "1")
    os.rmdir(CONFIG + "host/hosts/hostile")
    gone(session)
    expect("the evictions that are counted", counter("evictions") - before, 1)
    os.mkdir(CONFIG + "host/hosts/hostile")
    m.refusal(NOT_ADMITTED, epoch=2, access=0, path=1)
    store(CONFIG + "host/hosts/hostile/access", "ro")
    m.refusal(EVICTED, epoch=2, access=0, resume=session.key)
    # Nor without its key, by a path that did not hear of it.
    m.refusal(EVICTED, epoch=2, access=0, path=1)
    m.path(epoch=2, access=0, incarnation=8)


# --- hosts, and what they may do ------------------------------------------------------------------

RULES = CONFIG + "rules/hosts/"


def slab(session):
    """Address and rkey of the only slab."""
    (addr, _, rkey), *_ = session.grants()
    return addr, rkey


def contents(export, access=0, **fields):
    """The first bytes of an export of RAM."""
    session = Map(export, **fields).path(access=access)
    io = session.io()
    expect("a read", io.rdma(WR_RDMA_READ, *slab(session), length=8), 0)
    got = bytes(io.memory[io.data : io.data + 8])
    expect("the status of the logout", session.ask(message(LOGOUT))[0], OK)
    return got


@cases("hosts",
       ("memory that another host had is zeroes", b"private", bytes(8)),
       ("memory that another host had is as it was, if that is wanted", b"kept", b"a secret"))
def scrubbed(export, found):
    session = Map(export).path()
    io = session.io()
    io.memory[io.data : io.data + 8] = b"a secret"
    expect("a write", io.rdma(WR_RDMA_WRITE, *slab(session), length=8), 0)
    expect("the status of the logout", session.ask(message(LOGOUT))[0], OK)
    expect("what the host itself finds", contents(export), b"a secret")
    if found != b"a secret":
        # Who may only read can neither see it nor destroy it.
        reader = Map(export, host=b"reader")
        reader.refusal(BUSY, access=0)
        expect("the words", reader.text(access=0), "the memory has what another host wrote: only a map that may write can have it cleared")
        expect("what the host itself finds after that", contents(export), b"a secret")
    expect("what another one finds", contents(export, access=1, host=b"reader"), found)
    expect("what the first one finds then", contents(export, access=1), found)
    # Nobody has written since.
    expect("what may be read of it", contents(export), found)


@cases("hosts",
       ("memory that a host may only read is written no more when the administrator's write returns", "access", "ro"),
       ("nor that of which another id is wanted", "host_id", "12345678-9abc-4def-8123-456789abcdef"))
def demoted_ram(name, value):
    store(RULES + "hostile/access", "rw")
    store(RULES + "hostile/host_id", "")
    m = Map(b"rules")
    session = m.path()
    io = session.io()
    addr, rkey = slab(session)
    io.memory[io.data : io.data + 8] = b"before.."
    expect("a write", io.rdma(WR_RDMA_WRITE, addr, rkey, length=8), 0)
    store(RULES + f"hostile/{name}", value)
    io.memory[io.data : io.data + 8] = b"after..."
    io.post(WR_RDMA_WRITE, io.data, 8, addr, rkey)
    time.sleep(0.5)
    expect("what is there", contents(b"rules", host=b"reader"), b"before..")
    gone(session)
    if name == "access":
        m.refusal(NO_WRITES, epoch=2, resume=session.key)
        expect("the words", m.text(epoch=2, resume=session.key), "rules is read-only for hostile")
        m.path(epoch=2, resume=session.key, access=0)
        store(RULES + "hostile/access", "rw")
        m.path(epoch=3, resume=session.key)
    else:
        m.refusal(NOT_ADMITTED, epoch=2, resume=session.key)
        store(RULES + "hostile/host_id", "")


@case("hosts", "a map of a device that may only be read from now on goes on, but for its writes")
def demoted_block():
    os.makedirs(CONFIG + "host/hosts/hostile", exist_ok=True)
    access = CONFIG + "host/hosts/hostile/access"
    store(access, "rw")
    m = Map(b"host")
    session = m.path()
    works(session.io())
    store(access, "ro")
    gone(session)
    m.refusal(NO_WRITES, map_id=os.urandom(16))
    back = m.path(epoch=2, resume=session.key)
    expect("the reservation key", back.key, session.key)
    size, writable = struct.unpack_from("<QB", event(back, EXTENT))
    expect("the size and the access", (size, writable), (back.size, 0))
    io = back.io()
    expect("the status of a write", status_of(io, inline_write(b"3" * 512, offset=0)), READ_ONLY)
    io.send(inline_read(offset=0, length=512, tag=1))
    expect("the length of a read", len(io.receive()[0]), 512)
    store(access, "rw")
    gone(back)
    works(m.path(epoch=3, resume=session.key).io())


@case("hosts", "who may only read, and keeps to it, does not notice")
def still_reads():
    store(RULES + "reader/access", "rw")
    session = Map(b"rules", host=b"reader").path(access=0)
    store(RULES + "reader/access", "ro")
    store(RULES + "hostile/access", "rw")
    alive(session)


@case("hosts", "a host with the id of another one ends nothing of that")
def same_id():
    m = Map(b"many")
    victim = m.path()
    io = victim.io()
    works(io)
    stranger = Map(b"many", host=b"stranger", boot=1 << 61).path()
    alive(victim)
    works(io, tag=1)
    # Under the map's own UUID, too.
    Map(b"many", host=b"stranger", boot=1 << 61, map_id=m.fields["map_id"]).path()
    alive(victim)
    alive(stranger)


@case("hosts", "who shows another id than that of an entry may do no more than the entry allows")
def other_id():
    entry = CONFIG + "many/hosts/hostile"
    os.mkdir(entry)
    try:
        store(entry + "/host_id", "12345678-9abc-4def-8123-456789abcdef")
        m = Map(b"many")
        # It is admitted as any other host is.
        writer = m.path()
        store(entry + "/access", "ro")
        gone(writer)
        m.refusal(NO_WRITES, map_id=os.urandom(16))
        alive(Map(b"many").path(access=0))
        alive(Map(b"many", host=b"stranger", boot=1 << 61).path())
    finally:
        os.rmdir(entry)


@case("hosts", "a host that may only read does not take the place of one that may write")
def reader_evicts():
    store(RULES + "hostile/access", "rw")
    store(RULES + "hostile/host_id", "")
    store(CONFIG + "rules/enable", "0")
    store(CONFIG + "rules/max_clients", "1")
    store(CONFIG + "rules/enable", "1")
    writer = Map(b"rules")
    session = writer.path()
    for boot in Map.boot, 1 << 62:
        Map(b"rules", host=b"reader", boot=boot).refusal(BUSY, access=0)
        Map(b"rules", host=b"reader", boot=boot, map_id=writer.fields["map_id"]).refusal(BUSY, access=0)
    alive(session)
    vanish(session)
    soon(lambda: show(CONFIG + "rules/clients") == "0", "it is still there")
    back = writer.path(epoch=2, resume=session.key)
    expect("the reservation key", back.key, session.key)
    vanish(back)
    store(CONFIG + "rules/enable", "0")
    store(CONFIG + "rules/max_clients", "16")
    store(CONFIG + "rules/enable", "1")


# --- leases, and what the server remembers --------------------------------------------------------


@case("leases", "nobody keeps a place for longer than the server wants")
def lease_is_capped():
    one, other = Map(b"one", timeout_ms=FOR_EVER), Map(b"one")
    store(CONFIG + "one/enable", "0")
    store(CONFIG + "one/lease_max_ms", "10000")
    store(CONFIG + "one/enable", "1")
    for timeout in FOR_EVER - 1, FOR_EVER:
        session = one.path(access=0, timeout_ms=timeout, heartbeat_ms=FOR_EVER)
        expect("the lease", session.lease_ms, 10000)
        one.fields["incarnation"] += 1
    start = time.monotonic()
    vanish(session)
    other.refusal(BUSY)
    soon(lambda: other.text(epoch=2**63).startswith("in use by hostile, away for "), "it is not away")
    while True:
        try:
            other.path()
            break
        except Refused as refusal:
            expect("the refusal", refusal.args[0], BUSY)
        if time.monotonic() - start > 10 + SOON:
            raise Failed("it keeps its place for ever")
        time.sleep(0.2)
    if time.monotonic() - start < 10:
        raise Failed("it loses its place before 10 s")
    one.refusal(EVICTED, epoch=2, resume=session.key)


@case("leases", "the administrator evicts a host by its name, be it there or away")
def evict_by_name():
    for there in True, False:
        # Larger than what was evicted.
        incarnation = 7 if there else 9
        one = Map(b"one", timeout_ms=FOR_EVER, incarnation=incarnation)
        session = one.path()
        if not there:
            vanish(session)
            soon(lambda: show(CONFIG + "one/clients_away") == "1", "it is not away")
        store(CONFIG + "one/evict", "hostile")
        if there:
            gone(session)
        clients("one", 0)
        away("one", 0)
        one.refusal(EVICTED, epoch=2, resume=session.key)
        Map(b"one", incarnation=incarnation).refusal(EVICTED)
        other = Map(b"one", incarnation=incarnation + 1).path()
        one.refusal(EVICTED, epoch=3, resume=session.key)
        alive(other)
        store(CONFIG + "one/evict", "hostile")
        gone(other)
    for name, error in ("hostile", 2), ("somebody", 2), ("no name", 22):
        try:
            store(CONFIG + "one/evict", name)
        except OSError as failure:
            expect("the error", failure.errno, error)
        else:
            raise Failed(f"{name} was evicted")


@case("leases", "the administrator evicts a host from an export of many maps")
def evict_from_many():
    one, other = Map(b"many"), Map(b"many", timeout_ms=FOR_EVER)
    sessions = [one.path(), other.path()]
    vanish(sessions[1])
    soon(lambda: show(CONFIG + "many/clients_away") == "1", "it is not away")
    store(CONFIG + "many/evict", "hostile")
    gone(sessions[0])
    clients("many", 0)
    away("many", 0)
    for m, session in (one, sessions[0]), (other, sessions[1]):
        m.refusal(EVICTED, epoch=2, resume=session.key)
    # They may be enabled anew, and are others then.
    for m in one, other:
        m.fields["incarnation"] += 1
        session = m.path()
        vanish(session)
        m.path(epoch=2, resume=session.key)
    clients("many", 2)


@case("leases", "a server that began anew says so, unless it is told what was")
def remembered():
    registration, enable = CONFIG + "one/registration", CONFIG + "one/enable"
    m, other = Map(b"one"), Map(b"one")
    session = m.path()
    # The map was let in, which needs no memory.
    expect("what it remembers", session.flags & 1, 1)
    expect("the registration", show(registration), str(session.key))
    try:
        store(registration, "1")
    except OSError as failure:
        expect("the error", failure.errno, 16)
    else:
        raise Failed("it is changed while the export is enabled")
    again = m.path(epoch=2, resume=session.key)
    expect("what it remembers", again.flags & 1, 1)
    # As a server that was loaded anew.
    store(enable, "0")
    store(registration, "")
    store(enable, "1")
    back = m.path(epoch=3, resume=session.key)
    expect("the reservation key", back.key, session.key)
    expect("what it remembers", back.flags & 1, 0)
    more = m.path(1, resume=session.key)
    expect("what it remembers", more.flags & 1, 0)
    expect("the registration", show(registration), "")
    # The map goes on.
    alive(more)
    expect("the registration", show(registration), str(session.key))
    more = m.path(2, resume=session.key)
    expect("what it remembers", more.flags & 1, 1)
    # As one that was told.
    store(enable, "0")
    store(registration, "")
    store(registration, str(session.key))
    store(enable, "1")
    other.refusal(EVICTED, resume=session.key + 2)
    back = m.path(epoch=4, resume=session.key)
    expect("what it remembers", back.flags & 1, 1)


# --- signs of life --------------------------------------------------------------------------------


@case("silence", "a client that promises none is gone after the longest lease of the export")
def silence_is_capped():
    longest = show(CONFIG + "many/lease_max_ms")
    store(CONFIG + "many/enable", "0")
    store(CONFIG + "many/lease_max_ms", "10000")
    store(CONFIG + "many/enable", "1")
    start = time.monotonic()
    sessions = [Map(b"many", heartbeat_ms=ms).path() for ms in (0, FOR_EVER)]
    for session in sessions:
        session.control.must_end(seconds=14 + SOON)
        if time.monotonic() - start < 10:
            raise Failed("it is given up too early")
    store(CONFIG + "many/enable", "0")
    store(CONFIG + "many/lease_max_ms", longest)
    store(CONFIG + "many/enable", "1")


@case("silence", "a client that promised signs of life and gives none is gone; others are not")
def silence():
    before = counter("heartbeats_missed")
    silent, lively, mute = (Map(b"many", heartbeat_ms=ms).path() for ms in (1000, 1000, 0))
    start = time.monotonic()
    io = silent.io()
    while not silent.control.ended:
        silent.control.look()
        alive(lively)
        time.sleep(0.5)
        if time.monotonic() - start > 8 + SOON:
            raise Failed("it is still there")
    if time.monotonic() - start < 5:
        raise Failed("it is given up too early")
    gone(silent, io)
    alive(lively)
    alive(mute)
    expect("the silences that are counted", counter("heartbeats_missed") - before, 1)


# --- commands -------------------------------------------------------------------------------------


@case("commands", "an export that is disabled answers what has begun, and begins nothing more")
def drain():
    session = Map(b"slow").path()
    ios = [session.io(queue) for queue in range(2)]
    start = time.monotonic()
    for io in ios:
        for tag in range(io.credit):
            io.send(inline_write(b"d" * 512, offset=512 * tag, tag=tag))
    with_device(sum(io.credit for io in ios))
    off = threading.Thread(target=store, args=(CONFIG + "slow/enable", "0"))
    off.start()
    time.sleep(0.05)
    if time.monotonic() - start > SLOW:
        raise Failed("this machine is too slow")
    alive(session)
    # It goes on sending all the time.
    tag = 8
    while not all(io.ended for io in ios):
        for io in ios:
            io.look()
            if not io.ended:
                io.send(inline_write(b"x" * 512, offset=512 * tag, tag=tag))
        tag = tag + 1 if tag < 15 else 8
        time.sleep(0.01)
        if time.monotonic() - start > SLOW + SOON:
            raise Failed("the connections go on")
    off.join(SOON)
    expect("whether the export is still being disabled", off.is_alive(), False)
    # The device is flushed, which the server says before it ends the session.
    expect("the length of what it says", len(event(session, FLUSHED)), 24)
    for io in ios:
        answers = sorted(struct.unpack_from("<HH", response) for response, _ in io.inbox)
        expect("the answers", answers, [(OK, tag) for tag in range(io.credit)])
    session.control.must_end()
    store(CONFIG + "slow/enable", "1")
    io = Map(b"slow").path().io()
    for offset, wanted in ((0, b"d" * 512 * io.credit), (4096, b"")):
        io.send(inline_read(offset=offset))
        expect(f"what is at {offset}", io.receive()[0], wanted.ljust(4096, b"\0"))


if __name__ == "__main__":
    main(*sys.argv[1:])
