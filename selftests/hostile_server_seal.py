#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A server that speaks in frames, and breaks them, or what they protect: hostile_server_seal.py ADDRESS SECOND GROUP

Does the cases of a group as hostile_server.py does its own. Each map has the key KEY and a protection. Whatever the server does that
only somebody in between could do, who has no key, a read gives what the server has sealed, or fails:

  kept      the protocol is kept: a file system, and verified I/O
  frames    answers with a wrong check, or which are wrong though their check is right
  data      data in the memory of the client that are not those of the answer, or are rewritten after it
  endless   answers that are wrong on each connection
  program   the protocol is kept, and a program changes memory that it has given to the kernel for I/O

Long: most of it is a list of cases, which share one server.
"""
import sys

sys.dont_write_bytecode = True

import mmap
import os
import re
import struct
import subprocess
import threading
import time
from ctypes import addressof, byref, c_void_p

from frames import CHECK, CRC32C, HEAD, NO_CHECK, NUMBER, REMOTE, SEAL, Direction, Forged, digest, nonce_of, seal
from handshake import flipped, keys_of_data
from hostile import (
    IO, LOGIN, READ, SIGNALED, WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMMEDIATE, WR_SEND, WR_SEND_WITH_IMMEDIATE,
    WR_SEND_WITH_INVALIDATE, WRITE, Failed, SendWr, expect)
from hostile_server import FORCE, LARGE, PAGE, PATIENT, Command, Task, broken, case, cases, main, once_armed, show
from hostile_server_keys import TEXT, KeyedPeer, KeyedServer

WORDS = {CRC32C: "crc32c", SEAL: "seal"}
PROTECTIONS = (("seal", SEAL), ("crc32c", CRC32C))
# Where the cases read and write.
AT = 3 << 20
# How often data are rewritten.
ROUNDS = 8


class SealedCommand(Command):
    """A command as it came in a frame."""

    def __init__(self, number, body):
        super().__init__(body[:32] + body[48:])
        self.number, self.whole, self.check = number, body[:32], body[32:48]


class SealedPeer(KeyedPeer):
    """An end of an I/O connection that speaks in frames."""

    out = into = None

    def reply(self):
        reply = super().reply()
        if self.kind == IO:
            client, server = keys_of_data(self.server.keys[self.session][5], self.private[32:48], reply[8:24])
            self.into, self.out = Direction(self.server.protection, client), Direction(self.server.protection, server)
            # Of each tag the last number that the client has used, and all numbers.
            self.lasts, self.numbers = {}, set()
        return reply

    def command(self, frame):
        """The command in a frame of the client, which has to be an honest one."""
        number, body = self.into.body(frame)
        if not 0 < number < REMOTE or number in self.numbers:
            raise Failed(f"the client uses number {number:#x}, or uses it twice")
        self.numbers.add(number)
        command = SealedCommand(number, body)
        if number <= self.lasts.get(command.tag, 0):
            raise Failed(f"number {number} of tag {command.tag} comes late")
        self.lasts[command.tag] = number
        if command.op != WRITE or command.inline:
            expect("the data check of a command without remote data", command.check, NO_CHECK)
        return command

    def frame(self, command, code=0, check=NO_CHECK, data=b"", number=None, **fields):
        """An answer to a command."""
        return self.out.frame(command.response(code, **fields) + check + data, number)

    def put(self, command, data, wait=True):
        """Writes the data of a read where the client wants them. Returns the number for the frame, and the data check."""
        number = self.out.next()
        there, check = self.out.data(number, command.whole, data)
        self.write(command, there)
        return number, check

    def write(self, command, there, at=0):
        """Writes to the memory of a command, as it is."""
        self.move(WR_RDMA_WRITE, command.addr + at, command.rkey, len(there), there)

    def send_and_write(self, frame, command, length):
        """Sends a frame, and writes the data of this connection to the memory of a command right behind it.

        Both are posted at once, so that what is written may come before the client has made its memory invalid.
        """
        at = self.data + self.DATA // 2
        self.memory[at : at + len(frame)] = frame
        wrs, sges = (SendWr * 2)(), (self.sge(at, len(frame)), self.sge(self.data, length))
        for wr, sge, opcode in zip(wrs, sges, (WR_SEND, WR_RDMA_WRITE)):
            wr.sg_list, wr.num_sge, wr.opcode, wr.flags = sge, 1, opcode, SIGNALED
        wrs[0].next, wrs[1].remote_addr, wrs[1].rkey = addressof(wrs[1]), command.addr, command.rkey
        if self.post_send(self.id.contents.qp, byref(wrs[0]), byref(c_void_p())):
            raise Failed("a work request is not taken")


class SealedServer(KeyedServer):
    """A server whose I/O connections speak in frames."""

    PEER = SealedPeer

    def __init__(self, protection=SEAL, **fields):
        self.protection, self.complaint = protection, None
        super().__init__(**{"max_io": 128 << 10, **fields})

    def handle(self, peer, message):
        if peer.kind == IO:
            try:
                command = peer.command(message)
            except (Forged, Failed) as error:
                self.complaint = self.complaint or str(error)
                raise Failed("the client is not honest") from None
            if not self.hook("command", peer, command):
                self.perform(peer, command)
            return
        if struct.unpack_from("<H", message) == (LOGIN,):
            # What is behind it is the tag.
            expect("the protection in the login", message[182], self.protection)
        super().handle(peer, message)

    def data(self, c):
        """What a read gives."""
        return self.memory[c.offset : c.offset + c.length]

    def perform(self, peer, command, code=0):
        c = command
        if c.op == READ and code == 0:
            if c.inline:
                return peer.send(peer.frame(c, data=self.data(c)))
            number, check = peer.put(c, self.data(c))
            return peer.send(peer.frame(c, check=check, number=number))
        if c.op == WRITE and code == 0:
            data = c.data if c.inline else self.fetched(peer, c)
            if data is not None:
                self.memory[c.offset : c.offset + c.length] = data
        return peer.send(peer.frame(c, code))

    def fetched(self, peer, c):
        """The data of a write in remote memory."""
        there = peer.move(WR_RDMA_READ, c.addr, c.rkey, c.length)
        if there is None:
            return None
        try:
            return peer.into.plain(c.number, c.whole, there, c.check)
        except Forged as error:
            self.complaint = self.complaint or f"of the data of a write {error}"
            raise Failed("the client is not honest") from None

    def close(self):
        super().close()
        if self.complaint:
            raise Failed(f"the client: {self.complaint}")

    def mapped(self, begin, **settings):
        """A map that is up, and works."""
        m = begin.map(**{"key": TEXT, "no_path_timeout_ms": 30000, "protection": WORDS[self.protection], **settings}).on()
        m.works(self)
        return m


def served(begin, protection=SEAL, **fields):
    begin.servers.append(SealedServer(protection, **fields))
    return begin.servers[-1]


def both(*table):
    """A table of cases for both protections; a short test has half of them for the first one, and a sixth for the other."""
    short = os.environ.get("FARBLK_SHORT")
    steps = {SEAL: 2 if short else 1, CRC32C: 6 if short else 1}
    return [(f"{name}: {words}", protection, *arguments) for name, protection in PROTECTIONS
            for words, *arguments in table[:: steps[protection]]]


def forged(m):
    """What the map has counted."""
    found = re.findall(r"\bforged (\d+)", show("/sys/kernel/debug/farblk/client/hostile/counters"))
    if not found:
        raise Failed("the map does not count what is forged")
    return sum(map(int, found))


def read_through(begin, protection, attack, length, count, **fields):
    """A read, for which the server says something else; the client does it again, on the next connection, and counts `count`."""
    server = served(begin, protection, **fields)
    m = server.mapped(begin)
    server.on["command"] = once_armed(lambda server, peer, c: c.op == READ and c.length == length and (attack(server, peer, c) or True))
    server.armed = True
    before = forged(m)
    broken(m, server, m.read(AT, length), AT, length)
    expect("what is counted as forged", forged(m) - before, count)
    return server, m


# --- the protocol is kept -------------------------------------------------------------------------


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command)} ends with {done.returncode}: {done.stdout.decode(errors='replace')[-300:]}")


@cases("kept", *PROTECTIONS)
def kept(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin, queues=2)
    for length in 512, PAGE, PAGE + 512, LARGE, 128 << 10:
        data = os.urandom(length)
        expect(f"a write of {length} bytes", m.write(AT, data).end("a write", PATIENT), None)
        expect(f"what was written of {length} bytes", server.memory[AT : AT + length] == data, True)
        read = m.read(AT, length)
        expect(f"a read of {length} bytes", read.end("a read", PATIENT), None)
        expect(f"what was read of {length} bytes", read.value == data, True)
    os.close(m.file)
    m.file = None
    os.makedirs("/run/mnt", exist_ok=True)
    run("mkfs.ext4", "-q", "-O", "^has_journal", m.device)
    run("mount", m.device, "/run/mnt")
    try:
        with open("/run/mnt/file", "wb") as file:
            file.write(b"a file" * 10000)
    finally:
        run("umount", "/run/mnt")
    run("fsck.ext4", "-fn", m.device)
    run("fio", "--name=kept", f"--filename={m.device}", "--direct=1", "--ioengine=libaio", "--iodepth=8", "--rw=randrw", "--size=4m",
        "--io_size=1m", "--bsrange=512-64k", "--verify=crc32c", "--verify_fatal=1")
    expect("the number of reconnects", m.reconnects(), 0)
    expect("what is counted as forged", forged(m), 0)
    return f"{max(len(peer.numbers) for peer in server.peers if peer.kind == IO)} frames on one connection"


@cases("kept", *PROTECTIONS)
def kept_anew(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    for _ in range(3):
        server.cut(m)
        m.works(server)


# Answers may be sent in another order than they are numbered, and numbers may have gaps.
@cases("kept", *PROTECTIONS)
def kept_order(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    held = []
    server.on["command"] = lambda server, peer, c: server.armed and (held.append((peer, c)) or True)
    server.armed = True
    reads = [m.read(AT + page * PAGE) for page in range(6)]
    m.soon(lambda: len(held) == 6, "the commands do not come")
    with server.lock:
        server.armed = False
        made = []
        for peer, c in held:
            peer.out.last += 3
            made.append((peer, peer.frame(c, data=server.data(c))))
        for peer, frame in reversed(made):
            peer.send(frame)
    for page, read in enumerate(reads):
        expect("a read", read.end("a read", PATIENT), None)
        expect("what was read", read.value == server.memory[AT + page * PAGE : AT + page * PAGE + PAGE], True)
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 0)


# --- answers --------------------------------------------------------------------------------------

# Where the parts of a frame with the data of a read are, and what to change there: (words, byte).
PARTS = [("the number", 0), ("the check", NUMBER), ("the end of the check", HEAD - 1), *(
    (words, HEAD + at) for words, at in (
        ("the status", 0), ("the tag", 2), ("the generation", 4), ("the credit", 8), ("the reserved bytes", 15), ("the data check", 16),
        ("the data", 32), ("the last byte", 32 + PAGE - 1)))]


@cases("frames", *both(*((f"a bit of {words} is changed", at) for words, at in PARTS)))
def frames_bit(begin, protection, at):
    read_through(begin, protection, lambda server, peer, c: peer.send(flipped(peer.frame(c, data=server.data(c)), 8 * at)), PAGE, 1)


OTHER = bytes(PAGE)


# Sent instead of the answer to an inline read: (words, what is made of the honest frame).
@cases("frames", *both(
    ("another check", lambda peer, c, whole: whole[:NUMBER] + os.urandom(CHECK) + whole[HEAD:]),
    ("a check of zeroes", lambda peer, c, whole: whole[:NUMBER] + bytes(CHECK) + whole[HEAD:]),
    ("a byte less", lambda peer, c, whole: whole[:-1]),
    ("no data", lambda peer, c, whole: whole[: HEAD + 32]),
    ("a byte more", lambda peer, c, whole: whole + b"x"),
    ("the check behind the body", lambda peer, c, whole: whole[:NUMBER] + whole[HEAD:] + whole[NUMBER:HEAD]),
    ("the other protection", lambda peer, c, whole: Direction(CRC32C + SEAL - peer.out.protection, bytes(32)).frame(
        c.response() + NO_CHECK + OTHER, peer.out.next())),
    ("the number of the next one", lambda peer, c, whole: struct.pack("<Q", peer.out.last + 1) + whole[NUMBER:])))
def frames_forged(begin, protection, change):
    read_through(begin, protection, lambda server, peer, c: peer.send(change(peer, c, peer.frame(c, data=server.data(c)))), PAGE, 1)


@cases("frames",
       ("the key of the client", lambda server, peer: peer.into.key),
       ("a key of zeroes", lambda server, peer: bytes(32)),
       ("the key of the session", lambda server, peer: server.keys[peer.session][5]),
       ("the key of another connection", lambda server, peer: keys_of_data(server.keys[peer.session][5], os.urandom(16), os.urandom(16))[1]))
def frames_key(begin, key):
    read_through(begin, SEAL, lambda server, peer, c: peer.send(Direction(SEAL, key(server, peer)).frame(
        c.response() + NO_CHECK + OTHER, peer.out.next())), PAGE, 1)


# What is no frame at all may be counted as forged, or not.
@cases("frames", *both(
    ("no byte", lambda peer, c, whole: (b"",)),
    ("a number alone", lambda peer, c, whole: (whole[:NUMBER],)),
    ("a number and a check alone", lambda peer, c, whole: (whole[:HEAD],)),
    ("a plain answer", lambda peer, c, whole: (c.response(1),)),
    # The generation is where the highest bits of the number are: it is any number.
    ("a plain answer that is as long as a frame", lambda peer, c, whole: (c.response() + bytes(len(whole) - 16),)),
    ("plain data as an answer", lambda peer, c, whole: (OTHER, WR_SEND_WITH_IMMEDIATE, c.immediate())),
    ("a frame with immediate data that make sense", lambda peer, c, whole: (flipped(whole, 8 * HEAD), WR_SEND_WITH_IMMEDIATE, c.immediate())),
    ("number 0", lambda peer, c, whole: (peer.frame(c, data=OTHER, number=0),)),
    ("number 2^63", lambda peer, c, whole: (peer.frame(c, data=OTHER, number=REMOTE),)),
    ("number 2^64 - 1", lambda peer, c, whole: (peer.frame(c, data=OTHER, number=2**64 - 1),)),
    ("a frame that is longer than any receive", lambda peer, c, whole: (whole + bytes(8192),))))
def frames_none(begin, protection, change):
    server = served(begin, protection)
    m = server.mapped(begin)
    server.on["command"] = once_armed(lambda server, peer, c: c.length == PAGE and (
        peer.send(*change(peer, c, peer.frame(c, data=server.data(c)))) or True))
    server.armed = True
    broken(m, server, m.read(AT), AT)


# The check is right: only the server itself can say so. It is a violation.
@cases("frames", *both(
    ("a data check with inline data", lambda peer, c, data: peer.frame(c, check=b"\1" + bytes(15), data=OTHER)),
    ("a data check with an error", lambda peer, c, data: peer.frame(c, 1, check=b"\1" + bytes(15))),
    ("data with an error", lambda peer, c, data: peer.frame(c, 1, data=OTHER)),
    ("no data", lambda peer, c, data: peer.frame(c)),
    ("data with a byte less", lambda peer, c, data: peer.frame(c, data=OTHER[:-1])),
    ("data with a byte more", lambda peer, c, data: peer.frame(c, data=OTHER + b"x")),
    ("half a response", lambda peer, c, data: peer.out.frame(c.response()[:8])),
    ("an empty body", lambda peer, c, data: peer.out.frame(b"")),
    ("a response without a data check", lambda peer, c, data: peer.out.frame(c.response(1))),
    ("another generation", lambda peer, c, data: peer.frame(c, data=OTHER, generation=c.generation ^ 1)),
    ("another tag", lambda peer, c, data: peer.frame(c, data=OTHER, tag=c.tag ^ 1)),
    ("a tag beyond the depth", lambda peer, c, data: peer.frame(c, 1, tag=16)),
    ("an unknown status", lambda peer, c, data: peer.frame(c, 15)),
    ("no credit", lambda peer, c, data: peer.frame(c, data=OTHER, credit=0)),
    ("credit beyond the depth", lambda peer, c, data: peer.frame(c, data=OTHER, credit=17)),
    ("reserved bytes that are not zero", lambda peer, c, data: peer.frame(c, data=OTHER, rest=b"\1" + bytes(5)))))
def frames_wrong(begin, protection, make):
    read_through(begin, protection, lambda server, peer, c: peer.send(make(peer, c, None)), PAGE, 0)


@cases("frames", *both(
    ("an answer twice", lambda first, second: [first, first]),
    ("an answer, and another one to the same command", lambda first, second: [first, second])))
def frames_twice(begin, protection, order):
    server = served(begin, protection)
    m = server.mapped(begin)

    def attack(server, peer, c):
        if c.length != PAGE:
            return False
        made = [peer.frame(c, data=server.data(c)), peer.frame(c, data=OTHER)]
        for frame in order(*made):
            peer.send(frame)
        return True

    server.on["command"] = once_armed(attack)
    server.armed = True
    read = m.read(AT)
    expect("the read", read.end("a read", PATIENT), None)
    expect("what was read", read.value == server.memory[AT : AT + PAGE], True)
    m.soon(lambda: m.reconnects() == 1, "the connection goes on")
    m.works(server)
    expect("what is counted as forged", forged(m), 0)


# Somebody in between has kept an answer, and plays it to a later command with the same tag. On
# another connection that is forged, on the same one it is late.
@cases("frames", *both(
    ("an earlier answer on the same connection", False, 0), ("an answer of an earlier connection", True, 1)))
def frames_replayed(begin, protection, cut, count):
    if (protection, cut) == (CRC32C, True):
        # Without a key nothing tells connections apart but the generation of the command.
        count = 0
    server = served(begin, protection)
    m = server.mapped(begin)
    seen = []

    def keep(server, peer, c):
        if server.armed and c.op == READ and c.length == PAGE:
            seen.append((c.tag, peer.frame(c, data=server.data(c))))
            peer.send(seen[-1][1])
            return True
        return False

    server.on["command"] = keep
    server.armed = True
    for page in range(16):
        expect("a read", m.read(AT + page * PAGE).end("a read", PATIENT), None)
    before = m.reconnects()
    if cut:
        server.armed = False
        server.cut(m)
        m.works(server)
        before = m.reconnects()
    old, counted = bytes(server.memory[AT : AT + PAGE]), forged(m)
    with server.lock:
        server.memory[AT : AT + PAGE] = os.urandom(PAGE)
    replays = []

    def replay(server, peer, c):
        frames = [frame for tag, frame in seen if tag == c.tag]
        if replays or c.op != READ or c.length != PAGE or not frames:
            return False
        replays.append(c.tag)
        peer.send(frames[0])
        return True

    server.on["command"] = replay
    for _ in range(32):
        read = m.read(AT)
        expect("a read", read.end("a read", PATIENT), None)
        if read.value == old:
            raise Failed("an old answer was taken for a new one")
        expect("what was read", read.value == server.memory[AT : AT + PAGE], True)
        if replays:
            break
    expect("replays", len(replays), 1)
    m.soon(lambda: m.reconnects() > before, "the connection goes on")
    expect("what is counted as forged", forged(m) - counted, count)
    m.works(server)


@cases("frames", *both(("the client's own frame is sent back to it",)))
def frames_reflected(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    kept, honest = [], SealedPeer.command

    def command(peer, frame):
        kept.append(frame)
        return honest(peer, frame)

    SealedPeer.command = command
    try:
        server.on["command"] = once_armed(lambda server, peer, c: c.length == PAGE and (peer.send(kept[-1]) or True))
        server.armed = True
        broken(m, server, m.read(AT), AT)
    finally:
        SealedPeer.command = honest


@cases("frames", *both(("the numbers of two answers are swapped",)))
def frames_swapped(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    held = []

    def attack(server, peer, c):
        if not server.armed or c.length != PAGE:
            return False
        held.append(c)
        if len(held) == 2:
            server.armed = False
            one, other = (peer.frame(c, data=server.data(c)) for c in held)
            peer.send(other[:NUMBER] + one[NUMBER:])
            peer.send(one[:NUMBER] + other[NUMBER:])
        return True

    server.on["command"] = attack
    server.armed = True
    reads = [m.read(AT + page * PAGE) for page in range(2)]
    for page, read in enumerate(reads):
        expect("a read", read.end("a read", PATIENT), None)
        expect("what was read", read.value == server.memory[AT + page * PAGE : AT + page * PAGE + PAGE], True)
    expect("the number of reconnects", m.reconnects(), 1)
    m.works(server)


# --- data in the memory of the client -------------------------------------------------------------


def other_command(at):
    return lambda peer, c, number, data: peer.out.data(number, flipped(c.whole, 8 * at), data)


def changed(there_bit=None, check_bit=None):
    def make(peer, c, number, data):
        there, check = peer.out.data(number, c.whole, data)
        return there if there_bit is None else flipped(there, there_bit), check if check_bit is None else flipped(check, check_bit)

    return make


def as_frame(peer, c, number, data):
    if peer.out.protection == SEAL:
        return seal(peer.out.key, nonce_of(number), data, c.whole)
    return data, digest(number, c.whole, data)


# What is written to the memory of a read, and its check in the answer.
@cases("data", *both(
    ("the first bit is changed", changed(0), 1),
    ("the last bit is changed", changed(8 * LARGE - 1), 1),
    ("a bit of the check is changed", changed(None, 77), 1),
    ("the check is zero", lambda peer, c, number, data: (peer.out.data(number, c.whole, data)[0], NO_CHECK), 1),
    ("plain data without a check", lambda peer, c, number, data: (bytes(len(data)), NO_CHECK), 1),
    ("nothing is written", lambda peer, c, number, data: (b"", peer.out.data(number, c.whole, data)[1]), 1),
    ("the last page is not written", lambda peer, c, number, data: (
        lambda there, check: (there[:-PAGE], check))(*peer.out.data(number, c.whole, data)), 1),
    ("sealed with the number of the next frame", lambda peer, c, number, data: peer.out.data(number + 1, c.whole, data), 1),
    ("sealed with the number of the frame itself", as_frame, 1),
    ("sealed for another offset", other_command(17), 1),
    ("sealed for another length", other_command(9), 1),
    ("sealed for another tag", other_command(2), 1),
    ("sealed for another generation", other_command(4), 1),
    ("sealed with a command of zeroes", lambda peer, c, number, data: peer.out.data(number, bytes(32), data), 1)))
def data_wrong(begin, protection, make, count):
    def attack(server, peer, c):
        number = peer.out.next()
        there, check = make(peer, c, number, server.data(c))
        if there:
            peer.write(c, there)
        peer.send(peer.frame(c, check=check, number=number))

    read_through(begin, protection, attack, LARGE, count)


@case("data", "seal: sealed with the key of the client")
def data_key(begin):
    def attack(server, peer, c):
        number = peer.out.next()
        there, check = peer.into.data(number, c.whole, server.data(c))
        peer.write(c, there)
        peer.send(peer.frame(c, check=check, number=number))

    read_through(begin, SEAL, attack, LARGE, 1)


@cases("data", *both(("the data of two reads are swapped",)))
def data_swapped(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    held = []

    def attack(server, peer, c):
        if not server.armed or c.length != LARGE:
            return False
        held.append(c)
        if len(held) == 2:
            server.armed = False
            made = []
            for c in held:
                number = peer.out.next()
                made.append((number, *peer.out.data(number, c.whole, server.data(c))))
            for c, (_, there, _) in zip(held, made[::-1]):
                peer.write(c, there)
            for c, (number, _, check) in zip(held, made):
                peer.send(peer.frame(c, check=check, number=number))
        return True

    server.on["command"] = attack
    server.armed = True
    reads = [m.read((2 << 20) + part * LARGE, LARGE) for part in range(2)]
    for part, read in enumerate(reads):
        expect("a read", read.end("a read", PATIENT), None)
        at = (2 << 20) + part * LARGE
        expect("what was read", read.value == server.memory[at : at + LARGE], True)
    expect("the number of reconnects", m.reconnects(), 1)
    if not forged(m):
        raise Failed("nothing is counted as forged")
    m.works(server)


# A peer that can write there may do so until the client has made its memory invalid: the data that
# it opens are those of then.
@cases("data", *both(
    ("rewritten right after the answer", "all"), ("a bit rewritten right after the answer", "bit"),
    ("rewritten with the data of another read after the answer", "other")))
def data_rewritten(begin, protection, how):
    server = served(begin, protection)
    m = server.mapped(begin)

    def attack(server, peer, c):
        if not server.armed or c.op != READ or c.length != LARGE:
            return False
        data = server.data(c)
        number, check = peer.put(c, data)
        there = peer.memory[peer.data : peer.data + PAGE]
        other = {"all": lambda: os.urandom(PAGE), "bit": lambda: flipped(there, 8 * PAGE // 2),
                 "other": lambda: peer.out.data(peer.out.next(), c.whole, os.urandom(c.length))[0][:PAGE]}[how]()
        frame = peer.frame(c, check=check, number=number)
        peer.memory[peer.data : peer.data + PAGE] = other
        peer.send_and_write(frame, c, PAGE)
        return True

    server.on["command"] = attack
    server.armed = True
    retried = 0
    for round_ in range(ROUNDS):
        before = m.reconnects()
        at = (2 << 20) + round_ % 4 * LARGE
        read = m.read(at, LARGE)
        error = None
        while read.is_alive():
            # Else each attempt would be attacked, and the read never end.
            if m.reconnects() != before:
                server.armed = False
            time.sleep(0.01)
        error = read.end("a read", PATIENT)
        if error not in (None, "EIO"):
            raise Failed(f"the read ends with {error}")
        if error is None and read.value != server.memory[at : at + LARGE]:
            raise Failed("the read gives what was written after the answer")
        # The write without a key that is valid breaks the connection in any case.
        m.works(server)
        retried += m.reconnects() != before
        server.armed = True
    return f"{retried} of {ROUNDS} connections broke, {forged(m)} were forged"


# With an answer that makes the memory invalid nothing can come after it.
@cases("data", *both(("rewritten after an answer that invalidates the memory",)))
def data_invalid(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)

    def attack(server, peer, c):
        if c.op != READ or c.length != LARGE:
            return False
        number, check = peer.put(c, server.data(c))
        peer.send(peer.frame(c, check=check, number=number), WR_SEND_WITH_INVALIDATE, c.rkey)
        peer.memory[peer.data : peer.data + c.length] = bytes(c.length)
        peer.post(WR_RDMA_WRITE, peer.data, c.length, c.addr, c.rkey, 0, 0)
        return True

    server.on["command"] = once_armed(attack)
    server.armed = True
    read = m.read(AT, LARGE)
    expect("the read", read.end("a read", PATIENT), None)
    expect("what was read", read.value == server.memory[AT : AT + LARGE], True)
    expect("what is counted as forged", forged(m), 0)
    m.works(server)


@cases("data", *both(("an RDMA WRITE with immediate data in place of the answer",)))
def data_immediate(begin, protection):
    def attack(server, peer, c):
        peer.put(c, server.data(c))
        peer.post(WR_RDMA_WRITE_WITH_IMMEDIATE, peer.data, c.length, c.addr, c.rkey, c.immediate())

    read_through(begin, protection, attack, LARGE, 0)


# Data alone are no answer.
@cases("data", *both(("data without an answer, and force",)))
def data_unanswered(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    server.on["command"] = once_armed(lambda server, peer, c: c.length == LARGE and (peer.put(c, server.data(c)) and True))
    server.armed = True
    read = m.read(AT, LARGE)
    time.sleep(1)
    expect("the read goes on", read.is_alive(), True)
    start = time.monotonic()
    m.force()
    if read.end("a read", FORCE) is None:
        raise Failed("the read succeeds")
    return f"force in {time.monotonic() - start:.1f} s"


# --- again and again ------------------------------------------------------------------------------


def spoil_inline(server, peer, c):
    peer.send(flipped(peer.frame(c, data=server.data(c)), 8 * HEAD))
    return True


def spoil_remote(server, peer, c):
    number, check = peer.put(c, server.data(c))
    peer.send(peer.frame(c, check=flipped(check), number=number))
    return True


@cases("endless", *both(
    ("wrong answers to a small read on each connection", PAGE, spoil_inline), ("wrong data of a large read on each", LARGE, spoil_remote)))
def endless(begin, protection, length, spoil):
    server = served(begin, protection)
    m = server.mapped(begin, no_path_timeout_ms=3000)
    server.on["command"] = lambda server, peer, c: server.armed and c.length == length and c.op == READ and spoil(server, peer, c)
    server.armed = True
    logins = len(server.logins)
    start = time.monotonic()
    read = m.read(AT, length)
    error = read.end("a read", PATIENT)
    took = time.monotonic() - start
    if error not in ("EIO", "ENOLINK"):
        raise Failed(f"the read ends with {error}")
    logins = len(server.logins) - logins
    if logins > 40:
        raise Failed(f"there are {logins} logins in {took:.1f} s")
    server.armed = False
    m.soon(lambda: m.state() == "live", "it does not come back")
    m.works(server)
    return f"{error} after {took:.1f} s, {logins} logins, {forged(m)} forged"


@cases("endless", *both(("force while each answer is wrong",)))
def endless_force(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin, no_path_timeout_ms=-1)
    server.on["command"] = lambda server, peer, c: server.armed and c.op == READ and c.inline and spoil_inline(server, peer, c)
    server.armed = True
    reads = [m.read(AT + page * PAGE) for page in range(4)]
    time.sleep(1.5)
    start = time.monotonic()
    m.force()
    for read in reads:
        if read.end("a read", FORCE) is None:
            raise Failed("a read succeeds")
    return f"force in {time.monotonic() - start:.1f} s"


# What was opened of data with a wrong check is nothing that a program may see, nor may it be in
# what it has given for a read that fails.
@cases("endless", ("seal: the memory of a read that fails", PAGE), ("seal: the memory of a large read that fails", LARGE))
def endless_memory(begin, length):
    server = served(begin)
    m = server.mapped(begin, no_path_timeout_ms=1500)
    secret = bytes(server.memory[AT : AT + length])

    def spoil(server, peer, c):
        if not server.armed or c.op != READ or c.length != length:
            return False
        if c.inline:
            peer.send(flipped(peer.frame(c, data=server.data(c)), 8 * (HEAD + 32 + 100)))
        else:
            number = peer.out.next()
            there, check = peer.out.data(number, c.whole, server.data(c))
            peer.write(c, flipped(there, 8 * 100))
            peer.send(peer.frame(c, check=check, number=number))
        return True

    server.on["command"] = spoil
    server.armed = True
    room = mmap.mmap(-1, length)
    room[:] = b"?" * length
    read = Task(os.preadv, m.open(), [room], AT)
    seen = []
    while read.is_alive():
        # Any time: the program may look while the read goes on.
        seen.append(room[:64] == secret[:64] or room[100:101] == flipped(secret[100:101]))
        time.sleep(0.001)
    if read.end("a read", PATIENT) is None:
        raise Failed("the read succeeds")
    if room[:64] == secret[:64]:
        raise Failed("what the server has not sealed is in the memory of the read")
    return f"looked {len(seen)} times" + (", and saw it meanwhile" if any(seen) else "")


# --- what a program does to its own I/O -----------------------------------------------------------


def held_command(begin, protection, op, length):
    """A server that holds commands, and those that it holds."""
    server = served(begin, protection)
    m = server.mapped(begin)
    held = []

    def hold(server, peer, c):
        if not server.armed or c.op != op or c.length != length:
            return False
        held.append((peer, c))
        return True

    server.on["command"] = hold
    server.armed = True
    return server, m, held


def let_go(server, held):
    with server.lock:
        server.armed = False
        for peer, c in held:
            try:
                server.perform(peer, c)
            except Failed:
                # The complaint says what.
                peer.disconnect()


# A program may change what it writes while it is written. What the disk has then nobody can tell,
# but it is no reason to end the connection of all others.
@cases("program", *both(("the data of a small write are changed under way", PAGE), ("the data of a large write are changed under way", LARGE)))
def program_write(begin, protection, length):
    server, m, held = held_command(begin, protection, WRITE, length)
    room = mmap.mmap(-1, length)
    room[:] = os.urandom(length)
    write = Task(os.pwritev, m.open(), [room], AT)
    m.soon(lambda: held, "the command does not come")
    room[:] = os.urandom(length)
    let_go(server, held)
    expect("the write", write.end("a write", PATIENT), None)
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 0)


@cases("program", *both(("the data of many writes are changed all the time",)))
def program_writes(begin, protection):
    server = served(begin, protection)
    m = server.mapped(begin)
    room, over = mmap.mmap(-1, LARGE), []
    file = m.open()

    def change():
        while not over:
            for at in range(0, LARGE, 512):
                room[at : at + 8] = os.urandom(8)

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    try:
        for round_ in range(16):
            for length in PAGE, LARGE:
                write = Task(os.pwritev, file, [memoryview(room)[:length]], AT)
                expect("a write", write.end("a write", PATIENT), None)
    finally:
        over.append(True)
        changing.join()
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 0)


# Into what it reads it may write, too.
@cases("program", *both(("the memory of a small read is written under way", PAGE), ("the memory of a large read is written under way", LARGE)))
def program_read(begin, protection, length):
    server = served(begin, protection)
    m = server.mapped(begin)
    room, over = mmap.mmap(-1, length), []
    file = m.open()

    def change():
        while not over:
            for at in range(0, length, 512):
                room[at : at + 8] = b"changed!"

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    try:
        for round_ in range(16):
            read = Task(os.preadv, file, [room], AT)
            expect("a read", read.end("a read", PATIENT), None)
    finally:
        over.append(True)
        changing.join()
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 0)
    expect("what is counted as forged", forged(m), 0)


@cases("program", *both(("a read into the same page again and again", 2), ("a large read into the same page", 16)))
def program_page(begin, protection, pages):
    server = served(begin, protection)
    m = server.mapped(begin)
    page = mmap.mmap(-1, PAGE)
    read = Task(os.preadv, m.open(), [page] * pages, AT)
    expect("the read", read.end("a read", PATIENT), None)
    # One of those that were read, as on any disk.
    if all(page[:] != server.memory[AT + PAGE * index : AT + PAGE * index + PAGE] for index in range(pages)):
        raise Failed("what was read is none of the pages")
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 0)
    expect("what is counted as forged", forged(m), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
