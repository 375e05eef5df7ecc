#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A client that asks for echoes of datagrams as it should not, and sends what it should not: hostile_echo.py SERVER echo

The cases are like those of hostile.py, on a server with the exports "e", which admits everybody, and "host", which lets the host "hostile"
read. Where there are no datagrams, as with iWARP, the server has to say so.
"""
import sys

sys.dont_write_bytecode = True

import ctypes
import glob
import mmap
import os
import socket
import struct
import time
from ctypes import POINTER, byref, c_char, c_int, c_uint16, c_uint32, c_ubyte, c_void_p

import hostile
from hostile import (
    BAD_STATE, ECHO, Context, ID, IWARP, LOCAL_WRITE, MALFORMED, NO_MEMORY, NO_SUCH_EXPORT, NOT_ADMITTED, OK, OLDEST, PATIENCE, PING, PONG,
    SIGNALED, SOON, WR_SEND, Cap, Connection, Failed, QpInitAttr, RecvWr, SendWr, Session, Sge, Wc, ask, case, cases, cm, expect, login, main,
    message, request, verbs, works)
from hostile_scratch import scratch

PS_UDP, QPT_UD, UNREACHABLE = 0x111, 4, 20
# The Q_Key of the connection manager's queue pairs.
QKEY = 0x01234567
GRH, ROOM, LOOKED_AT = 40, 4096, 1024


class AhAttr(ctypes.Structure):
    _fields_ = [("gid", c_ubyte * 16), ("flow", c_uint32), ("index", c_ubyte), ("hops", c_ubyte), ("traffic_class", c_ubyte), ("dlid", c_uint16),
                ("sl", c_ubyte), ("path_bits", c_ubyte), ("rate", c_ubyte), ("is_global", c_ubyte), ("port", c_ubyte)]


verbs.ibv_create_ah.restype, verbs.ibv_create_ah.argtypes = c_void_p, (c_void_p, POINTER(AhAttr))


class Mailbox:
    """A queue pair for datagrams of this host, on the device and the address by which it reaches the server."""

    RECEIVES = 64
    kept = []

    def __init__(self):
        self.kept.append(self)
        self.channel, self.id = cm.rdma_create_event_channel(), ID()
        cm.rdma_create_id(self.channel, byref(self.id), None, PS_UDP)
        address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", hostile.PORT, socket.inet_aton(hostile.SERVER))
        cm.rdma_resolve_addr(self.id, None, ctypes.create_string_buffer(address), 2000)
        Connection.event(self, hostile.ADDR_RESOLVED)
        cm.rdma_resolve_route(self.id, 2000)
        Connection.event(self, hostile.ROUTE_RESOLVED)
        device = self.id.contents.verbs
        self.poll_cq = device.contents.operation(Context.POLL_CQ, c_void_p, c_int, POINTER(Wc))
        self.post_send = device.contents.operation(Context.POST_SEND, c_void_p, POINTER(SendWr), POINTER(c_void_p))
        self.post_recv = device.contents.operation(Context.POST_RECV, c_void_p, POINTER(RecvWr), POINTER(c_void_p))
        self.memory = mmap.mmap(-1, (self.RECEIVES + 1) * 2 * ROOM)
        self.base = ctypes.addressof(c_char.from_buffer(self.memory))
        self.pd = verbs.ibv_alloc_pd(device)
        self.cq = verbs.ibv_create_cq(device, 4096, None, None, 0)
        self.mr = verbs.ibv_reg_mr(self.pd, self.base, len(self.memory), LOCAL_WRITE)
        attr = QpInitAttr(None, self.cq, self.cq, None, Cap(1024, self.RECEIVES, 1, 1, 0), QPT_UD, 1)
        cm.rdma_create_qp(self.id, self.pd, byref(attr))
        self.qp = self.id.contents.qp
        # Behind six pointers and the handle.
        self.number = struct.unpack("=I", ctypes.string_at(self.qp + 52, 4))[0]
        gid = (c_ubyte * 16)(*bytes(10), 0xFF, 0xFF, *socket.inet_aton(hostile.SERVER))
        self.ah = verbs.ibv_create_ah(self.pd, byref(AhAttr(gid=gid, index=self.gid_index(), hops=64, is_global=1, port=1)))
        if not self.ah:
            raise OSError(ctypes.get_errno(), "ibv_create_ah")
        self.received, self.sent = [], 0
        for slot in range(self.RECEIVES):
            self.receive_into(slot)

    # Nothing of the connection manager's is private here.
    ended = False

    @staticmethod
    def gid_index():
        """The index of the server's own address, which is this host's, too: of RoCE v2."""
        wanted = "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(socket.inet_aton(hostile.SERVER))
        for path in sorted(glob.glob("/sys/class/infiniband/rxe0/ports/1/gids/*")):
            with open(path, encoding="ascii") as gid:
                if gid.read().strip() == wanted:
                    return int(os.path.basename(path))
        raise Failed("there is no GID of the server's address")

    def sge(self, offset, length):
        return ctypes.pointer(Sge(self.base + offset, length, self.mr.contents.lkey))

    def receive_into(self, slot):
        wr = RecvWr(slot + 1, None, self.sge((slot + 1) * 2 * ROOM, GRH + ROOM), 1)
        self.post_recv(self.qp, byref(wr), byref(c_void_p()))

    def send(self, to, data, length=None):
        """Sends a datagram to the queue pair of that number and Q_Key."""
        number, qkey = to
        self.memory[: len(data)] = data
        wr = SendWr(0, None, self.sge(0, len(data) if length is None else length), 1, WR_SEND, SIGNALED, 0, self.ah, number)
        wr.rest[:4] = struct.pack("=I", qkey)
        if self.post_send(self.qp, byref(wr), byref(c_void_p())):
            raise Failed("a datagram is not sent")
        self.sent += 1

    def look(self):
        wc = Wc()
        while self.poll_cq(self.cq, 1, byref(wc)) > 0:
            if wc.wr_id == 0:
                self.sent -= 1
            elif wc.status == 0:
                at = wc.wr_id * 2 * ROOM
                self.received.append((wc.src_qp, self.memory[at + GRH : at + wc.byte_len]))
                self.receive_into(wc.wr_id - 1)

    def left(self):
        """Waits until all that was sent has left."""
        end = time.monotonic() + SOON
        while self.sent:
            self.look()
            if time.monotonic() > end:
                raise Failed("a datagram does not leave")

    def answers(self, count, seconds=SOON):
        """Up to `count` answers that are there after so many seconds."""
        end = time.monotonic() + seconds
        while len(self.received) < count and time.monotonic() < end:
            self.look()
            time.sleep(0.001)
        answers, self.received = self.received, []
        return answers

    def nothing(self):
        expect("what came back", self.answers(1, 0.5 * PATIENCE), [])


def echo(export=b"e", host_id=b"h" * 16, host=b"hostile", number=0x1234, qkey=QKEY, size=1024, count=4):
    return message(ECHO, struct.pack("<16s64s64sIIII8x", host_id, host, export, number, qkey, size, count))


def begin(control, mailbox, **wanted):
    """Number and Q_Key of the server's queue pair."""
    code, reply = ask(control, echo(number=mailbox.number, **wanted))
    expect("the status", code, OK)
    expect("the length of the reply", len(reply), 128)
    number, qkey, mtu, rest = struct.unpack_from("<IIII", reply, 112)
    expect("what is reserved", rest, 0)
    if number in (0, 1, mailbox.number) or number >> 24 or qkey >> 31 or qkey == QKEY or not 256 <= mtu <= 4096:
        raise Failed(f"queue pair {number:#x}, Q_Key {qkey:#x}, MTU {mtu}")
    return number, qkey


def echoes(mailbox, to, size=64):
    """What is sent comes back. Datagrams may be lost, but not all of them."""
    for _ in range(10):
        said = os.urandom(size)
        mailbox.send(to, said)
        if (to[0], said) in mailbox.answers(1, PATIENCE):
            return
    raise Failed("nothing comes back")


def pings(control):
    control.send(message(PING))
    expect("the answer to a ping", struct.unpack_from("<H", control.receive()[0]), (PONG,))


def with_datagrams(function):
    """The case where there are datagrams; where there are none the server has to say so."""

    def run(*arguments):
        if not IWARP:
            return function(*arguments)
        expect("the status with iWARP", ask(Connection(request()), echo())[0], UNREACHABLE)

    return run


@cases("echo", 0, ("for who may write", b"e", 1024), ("for who may only read", b"host", 1), ("of the largest size", b"e", 4096))
@with_datagrams
def echo_works(export, size):
    control, mailbox = Connection(request()), Mailbox()
    to = begin(control, mailbox, export=export, size=size, count=8)
    # The port of a host of tests may have a smaller MTU.
    for length in {1, min(size, 1024)}:
        echoes(mailbox, to, length)
    pings(control)
    mailbox.left()
    # With the connection it goes.
    control.close()
    end = time.monotonic() + SOON
    while True:
        mailbox.send(to, b"?")
        if not mailbox.answers(1, 0.5 * PATIENCE):
            return
        if time.monotonic() > end:
            raise Failed("it answers for ever")


@cases("echo", 0,
       ("of queue pair 0", echo(number=0), MALFORMED),
       ("of queue pair 1", echo(number=1), MALFORMED),
       ("of the queue pair of multicast", echo(number=0xFFFFFF), MALFORMED),
       ("of a queue pair with 25 bits", echo(number=0x1001234), MALFORMED),
       ("with a controlled Q_Key", echo(qkey=1 << 31), MALFORMED),
       ("of no size", echo(size=0), MALFORMED),
       ("that is too large", echo(size=4097), MALFORMED),
       ("that is huge", echo(size=0x10001), MALFORMED),
       ("of no datagrams", echo(count=0), MALFORMED),
       ("of too many", echo(count=33), MALFORMED),
       ("of far too many", echo(count=0x10001), MALFORMED),
       ("that is too short", message(ECHO, echo()[8:-1]), MALFORMED),
       ("that is too long", message(ECHO, echo()[8:] + b"x"), MALFORMED),
       ("of nobody", echo(host_id=bytes(16)), MALFORMED),
       ("of a host without a name", echo(host=b""), MALFORMED),
       ("by an export with a slash", echo(b"../x"), MALFORMED),
       ("by an export that is not there", echo(b"nothing"), NO_SUCH_EXPORT),
       ("by an export that does not admit the host", echo(b"host", host=b"other"), NOT_ADMITTED))
def echo_refused(asked, code):
    control = Connection(request())
    expect("the status", ask(control, asked)[0], code)
    pings(control)


@case("echo", "on a connection of an older version")
def echo_older():
    control = Connection(request(oldest=OLDEST, newest=OLDEST))
    expect("the status", ask(control, echo())[0], MALFORMED)
    expect("the status of a login", ask(control, login())[0], OK)


@case("echo", "twice, and a login with it")
@with_datagrams
def echo_twice():
    control, mailbox = Connection(request()), Mailbox()
    to = begin(control, mailbox)
    for asked in echo(), echo(size=1), login(), login(b"nothing"):
        expect("the status", ask(control, asked)[0], BAD_STATE)
    # One of each is allowed.
    expect("the status of a scratch region", ask(control, scratch())[0], OK)
    echoes(mailbox, to)


@case("echo", "after a login")
def echo_logged_in():
    session = Session()
    io = session.io()
    expect("the status", session.ask(echo())[0], BAD_STATE)
    works(io)


@case("echo", "by another queue pair, and with another Q_Key")
@with_datagrams
def echo_foreign():
    control, mailbox, other = Connection(request()), Mailbox(), Mailbox()
    number, qkey = to = begin(control, mailbox, count=32)
    echoes(mailbox, to)
    for _ in range(8):
        # It knows all that there is to know, but is not the one.
        other.send(to, b"me?")
    for wrong in QKEY, qkey ^ 1, 0, 1 << 31, qkey | 1 << 31:
        mailbox.send((number, wrong), b"who?")
    other.nothing()
    mailbox.nothing()
    echoes(mailbox, to)


@case("echo", "of nothing, and of more than was said")
@with_datagrams
def echo_long():
    control, mailbox = Connection(request()), Mailbox()
    to = begin(control, mailbox, size=128)
    mailbox.send(to, b"x", length=0)
    mailbox.nothing()
    echoes(mailbox, to, 128)
    for _ in range(3):
        mailbox.send(to, os.urandom(256))
    mailbox.nothing()
    pings(control)
    again = Connection(request())
    echoes(mailbox, begin(again, mailbox))


@case("echo", "of more datagrams than a connection may send")
@with_datagrams
def echo_flood():
    control, mailbox = Connection(request()), Mailbox()
    to = begin(control, mailbox, count=32)
    answers = sent = 0
    end = time.monotonic() + 7 * PATIENCE
    got = True
    while got and time.monotonic() < end:
        for _ in range(32):
            mailbox.send(to, b"x")
        sent += 32
        mailbox.left()
        # Some may be lost.
        got = len(mailbox.answers(32, 0.3 * PATIENCE))
        answers += got
        if sent % 256 == 0:
            pings(control)
    print(f"# {answers} answers to {sent} datagrams", flush=True)
    if not 0 < answers <= LOOKED_AT or (got and sent > LOOKED_AT + 64):
        raise Failed(f"{answers} answers to {sent} datagrams")


@case("echo", "more than a host may have, and again when the others are gone")
@with_datagrams
def echo_many():
    mailbox = Mailbox()
    first, second = Connection(request()), Connection(request())
    to = begin(first, mailbox, size=4096, count=32)
    expect("the status of one more", ask(second, echo(number=mailbox.number, host=b"another", size=4096, count=32))[0], NO_MEMORY)
    # One that has an entry is another one.
    begin(second, mailbox, export=b"host", size=4096, count=32)
    echoes(mailbox, to)
    first.close()
    end = time.monotonic() + SOON
    while True:
        again = Connection(request())
        code, _ = ask(again, echo(number=mailbox.number, size=4096, count=32))
        if code == OK:
            return
        again.close()
        if time.monotonic() > end:
            raise Failed("the memory does not come back")
        time.sleep(0.1)


@case("echo", "connections that die with datagrams under way")
@with_datagrams
def echo_death():
    mailbox = Mailbox()
    for _ in range(12):
        control = Connection(request())
        to = begin(control, mailbox, count=32)
        for _ in range(32):
            mailbox.send(to, os.urandom(256))
        control.close()
        mailbox.left()
        # A source may have so many in a second.
        time.sleep(0.1)
    works(Session().io())


if __name__ == "__main__":
    main(*sys.argv[1:])
