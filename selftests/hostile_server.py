#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A server that does not keep to the protocol: hostile_server.py ADDRESS SECOND GROUP

Serves a disk in memory over RDMA at ADDRESS, in user space, as Documentation/protocol.rst says, and
breaks the protocol in one place per case. Its client is a map of this host, which the case makes
through configfs; a second server of some cases is at SECOND. In each case of GROUP `enable` ends in time; then the map fails with a reason in
words, or goes on with the right data; `force` ends it within 10 s; and user space is told of at most 10 changes in any second. Exits with 1 if a map did
something else, with 4 if user space has no RDMA. FARBLK_CASE=WORDS picks the cases named so.

Long: most of it is a list of cases, which share one server.

The server runs in a thread of its own. A case changes what the server does through hooks:
Server.on[MESSAGE] is called with the peer and the message, and returns True if it has dealt with
the message in its own way.
"""
import sys

sys.dont_write_bytecode = True

import errno
import mmap
import os
import re
import select
import socket
import struct
import subprocess
import threading
import time
import traceback
from ctypes import POINTER, addressof, byref, c_char, c_int, c_ubyte, c_void_p, cast, create_string_buffer, string_at

import hostile
from hostile import (
    CONTROL, ESTABLISHED, EXTENT, FENCE, FENCED, FLUSHED, GRANT, IO, LIST, LOGIN, LOGOUT, MAGIC, OLDEST,
    PATIENCE, PING, PONG, PORT, READ, RECEIVED, REPLY, RO, RW, VERSION, WR_RDMA_READ, WR_RDMA_WRITE,
    WR_RDMA_WRITE_WITH_IMMEDIATE, WR_SEND, WR_SEND_WITH_IMMEDIATE, WR_SEND_WITH_INVALIDATE, WRITE,
    CmEvent, CmId, Connection, ConnParam, Failed, Wc, checked, cm, expect, verbs)

CONFIG = "/sys/kernel/config/farblk/maps/"
CONNECT_REQUEST = 4
# The number of a work request whose end is waited for, and of those that are counted.
AWAITED, COUNTED = 1, 2
INLINE = 2
KIND_BLOCK, KIND_RAM = 0, 1
# Access of remote atomic operations, which there are none of with iWARP.
ATOMICS = 0 if hostile.IWARP else 8
# Within so many seconds `enable` has ended, force has, and I/O that may wait for a path has.
ENABLE, FORCE, PATIENT = 10 * PATIENCE, 10 * PATIENCE, 30 * PATIENCE
BLOCK, PAGE, LARGE = 512, 4096, 64 << 10
SIZE, SLAB_SHIFT = 8 << 20, 20

for name, arguments in {"rdma_bind_addr": (POINTER(CmId), c_void_p), "rdma_listen": (POINTER(CmId), c_int),
                        "rdma_accept": (POINTER(CmId), POINTER(ConnParam)), "rdma_reject": (POINTER(CmId), c_void_p, c_ubyte),
                        "rdma_migrate_id": (POINTER(CmId), c_void_p)}.items():
    entry = getattr(cm, name)
    entry.restype, entry.argtypes, entry.errcheck = c_int, arguments, checked


def show(path):
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def store(path, value):
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


# --- the server -----------------------------------------------------------------------------------


class Peer(Connection):
    """The server's end of a connection."""

    def __init__(self, server, event):
        self.server, self.pd, self.own_pd, self.cq, self.mr = server, None, None, None, None
        self.ended, self.accepted, self.inbox, self.sent, self.awaited, self.at, self.data_at = False, False, [], [], [], 0, 0
        self.under_way, self.taken = 0, 0
        param = event.param
        self.private = private = string_at(param.private_data, param.private_data_len) if param.private_data else b""
        self.peer_qp = param.qp_num
        _, self.oldest, self.newest, self.kind, self.queue, self.session, self.epoch = struct.unpack_from("<4sHHBxH4xQQ", private.ljust(32, b"\0"))
        self.id = cast(event.id, POINTER(CmId))
        self.channel = cm.rdma_create_event_channel()

    def own(self):
        """Takes its events to a channel of its own. Not before its first event was acknowledged."""
        cm.rdma_migrate_id(self.id, self.channel)
        Connection.alive.append(self)

    def domain(self, device):
        return self.server.domain(device)

    def accept(self, private=None, receives=None, room=8192):
        self.make(min(self.SLOTS, receives or (16 if self.kind == CONTROL else self.SLOTS)), room)
        private = self.reply() if private is None else private
        param = ConnParam(cast(create_string_buffer(private, len(private)), c_void_p), len(private), 8, 8, 0, 6, 6)
        self.accepted = True
        cm.rdma_accept(self.id, byref(param))

    def reply(self):
        """The private data of the reply of an honest server."""
        return struct.pack("<4sHH16x", MAGIC, VERSION, 0)

    def reject(self, private=b""):
        cm.rdma_reject(self.id, create_string_buffer(private, max(1, len(private))), len(private))
        self.ended = True

    def look(self, repost=True):
        """Takes in what has happened; whether there was something."""
        found = False
        while not self.ended:
            kind = self.next_event()
            if kind is None:
                break
            self.ended = kind != ESTABLISHED
        wc = Wc()
        while self.cq and self.poll_cq(self.cq, 1, byref(wc)) > 0:
            found = True
            slot = wc.wr_id - RECEIVED
            if wc.wr_id == COUNTED:
                self.under_way -= 1
                self.taken += wc.status == 0
            elif slot < 0:
                (self.awaited if wc.wr_id == AWAITED else self.sent).append(wc.status)
            elif wc.status == 0:
                at = self.SENDS + slot * self.room
                self.inbox.append(self.memory[at : at + wc.byte_len])
                if repost:
                    self.receive_into(slot)
        return found

    def next_event(self):
        ready = select.poll()
        ready.register(c_int.from_address(self.channel).value, select.POLLIN)
        if not ready.poll(0):
            return None
        event = POINTER(CmEvent)()
        cm.rdma_get_cm_event(self.channel, byref(event))
        kind = event.contents.type
        cm.rdma_ack_cm_event(event)
        return kind

    def tagged(self, message):
        """The message as it is sent."""
        return message

    def send(self, message, opcode=WR_SEND, immediate=0):
        message = self.tagged(self.server.numbered(message))
        if self.at + len(message) > self.SENDS:
            self.at = 0
        self.memory[self.at : self.at + len(message)] = message
        self.post(opcode, self.at, len(message), immediate=immediate)
        # Else the next one of no byte would share its place, which does no harm.
        self.at += len(message)

    def send_all(self, messages):
        """Sends messages of 64 bytes at most at once, and counts in `taken` those that get there.

        None of those before may be under way.
        """
        wrs, keep = (hostile.SendWr * len(messages))(), []
        for index, message in enumerate(messages):
            at = self.data + self.DATA // 2 + 64 * index
            message = self.server.numbered(message)
            self.memory[at : at + len(message)] = message
            keep.append(self.sge(at, len(message)))
            wrs[index].wr_id, wrs[index].sg_list, wrs[index].num_sge = COUNTED, keep[-1], 1
            wrs[index].opcode, wrs[index].flags = WR_SEND, hostile.SIGNALED
            wrs[index].next = addressof(wrs[index + 1]) if index + 1 < len(messages) else None
        if not self.post_send(self.id.contents.qp, byref(wrs[0]), byref(c_void_p())):
            self.under_way = len(messages)

    def move(self, opcode, addr, rkey, length, data=None, immediate=0):
        """Reads or writes the client's memory, and waits for it.

        Returns what was read, or None if that failed.
        """
        if data is not None:
            self.memory[self.data : self.data + length] = data
        self.awaited.clear()
        if self.post(opcode, self.data, length, addr, rkey, immediate, AWAITED):
            return None
        self.until(lambda: self.awaited, "a work request does not complete")
        return self.memory[self.data : self.data + length] if self.awaited.pop() == 0 else None


LOGIN_FIELDS = ("host_id", "host", "map_id", "epoch", "export", "access", "path", "queues", "depth", "protection", "features", "inline",
                "heartbeat_ms", "boot", "incarnation", "resume", "timeout_ms")
LOGIN_FORMAT = "<16s64s16sQ64sBBHHBBIIQQQI4x"
REPLY_FORMAT = (("session", "Q"), ("export_uuid", "16s"), ("instance", "16s"), ("size", "Q"), ("access", "B"), ("kind", "B"), ("slab_shift", "B"),
                ("features", "B"), ("queues", "H"), ("depth", "H"), ("inline", "I"), ("logical", "I"), ("physical", "I"), ("io_min", "I"),
                ("io_opt", "I"), ("max_io", "I"), ("max_discard", "I"), ("discard_granularity", "I"), ("max_zeroes", "I"), ("credit", "H"),
                ("flags", "H"), ("key", "Q"), ("server_id", "16s"), ("lease_ms", "I"), ("extent_number", "I"), ("atomic_max", "I"),
                ("atomic_min", "I"), ("atomic_largest", "I"), ("atomic_boundary", "I"), ("max_erase", "I"), ("erase_granularity", "I"))
# What the reply says of atomic writes and secure erases. Nothing, if not told otherwise.
ATOMIC_FIELDS = ("atomic_max", "atomic_min", "atomic_largest", "atomic_boundary", "max_erase", "erase_granularity")


def head(kind, length, sequence):
    return struct.pack("<HHI", kind, length, sequence)


def status(code=0, text="", length=None):
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<HHI96s", code, len(text) if length is None else length, 0, text)


def reply(kind, sequence, body=b"", code=0, text=""):
    message = status(code, text) + body
    return head(kind | REPLY, 8 + len(message), sequence) + message


def event(kind, body=b"", length=None):
    return head(kind, 8 + len(body) if length is None else length, 0) + body


def extent(size=SIZE, access=RW, number=0):
    """An event on the extent. Number 0 stands for one larger than all before."""
    return event(EXTENT, struct.pack("<QB3xI", size, access, number))


def rejection(code, text="", length=None, magic=MAGIC):
    return struct.pack("<4sHH", magic, VERSION, VERSION) + status(code, text, length)


class Command:
    """A command as it came."""

    def __init__(self, message):
        self.op, self.flags, self.tag, self.generation, self.length, self.rkey, self.offset, self.addr = struct.unpack_from("<BBHIIIQQ", message)
        self.data = message[32:]
        self.inline = bool(self.flags & INLINE)

    def response(self, code=0, credit=16, tag=None, generation=None, rest=bytes(6)):
        return struct.pack("<HHIH6s", code, self.tag if tag is None else tag, self.generation if generation is None else generation, credit, rest)

    def immediate(self, credit=16, tag=None, generation=None):
        """The immediate data of an answer that is the data, as the device wants them."""
        tag, generation = self.tag if tag is None else tag, self.generation if generation is None else generation
        return socket.htonl(tag << 22 | (credit - 1) << 12 | generation & 0xFFF)


class Server:
    """A server.

    Its fields are what it is honest about; `fields` of the login's reply override them.
    """

    PEER = Peer

    def __init__(self, kind=KIND_BLOCK, on=None, address=None, **fields):
        self.kind, self.on, self.fields = kind, on or {}, fields
        self.lock, self.stopped, self.error = threading.RLock(), False, None
        self.peers, self.strangers, self.pd, self.disk_mr, self.sessions, self.logins, self.extents = [], [], None, None, 0, [], 0
        self.export_uuid, self.instance, self.server_id = (os.urandom(16) for _ in range(3))
        self.memory = mmap.mmap(-1, SIZE)
        # No partitions: the first page is zeroes.
        self.memory[PAGE:] = os.urandom(SIZE - PAGE)
        self.base = addressof(c_char.from_buffer(self.memory))
        self.channel = cm.rdma_create_event_channel()
        self.id = POINTER(CmId)()
        cm.rdma_create_id(self.channel, byref(self.id), None, hostile.PS_TCP)
        address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", PORT, socket.inet_aton(address or ADDRESS))
        cm.rdma_bind_addr(self.id, create_string_buffer(address))
        cm.rdma_listen(self.id, 64)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def domain(self, device):
        if not self.pd:
            self.pd = verbs.ibv_alloc_pd(device)
            self.disk_mr = verbs.ibv_reg_mr(self.pd, self.base, SIZE, hostile.LOCAL_WRITE | hostile.REMOTE_WRITE | hostile.REMOTE_READ | ATOMICS)
        return self.pd

    def close(self):
        self.stopped = True
        self.thread.join(PATIENT)
        with self.lock:
            for peer in self.peers:
                peer.close()
            for stranger in self.strangers:
                cm.rdma_destroy_id(stranger)
            cm.rdma_destroy_id(self.id)
            cm.rdma_destroy_event_channel(self.channel)
            if self.disk_mr:
                verbs.ibv_dereg_mr(self.disk_mr)
            if self.pd:
                verbs.ibv_dealloc_pd(self.pd)
        if self.error:
            raise Failed(f"the server itself failed: {self.error}")

    def run(self):
        try:
            while not self.stopped:
                with self.lock:
                    busy = self.turn()
                if not busy:
                    time.sleep(0.001)
        except BaseException:
            self.error = traceback.format_exc()

    def turn(self):
        busy = self.greet()
        for peer in self.peers.copy():
            busy |= peer.look()
            try:
                while peer.inbox and not peer.ended:
                    self.handle(peer, peer.inbox.pop(0))
            except (OSError, Failed):
                # It has ended meanwhile.
                peer.ended = True
            if peer.ended:
                self.peers.remove(peer)
                peer.close()
        return busy

    def greet(self):
        """Takes in a connection request."""
        ready = select.poll()
        ready.register(c_int.from_address(self.channel).value, select.POLLIN)
        if not ready.poll(0):
            return False
        event = POINTER(CmEvent)()
        cm.rdma_get_cm_event(self.channel, byref(event))
        if event.contents.type != CONNECT_REQUEST:
            # Of one that was never let in.
            cm.rdma_ack_cm_event(event)
            return True
        peer = self.PEER(self, event.contents)
        cm.rdma_ack_cm_event(event)
        peer.own()
        self.peers.append(peer)
        try:
            if not self.hook("connect" if peer.kind == CONTROL else "connect_io", peer, None):
                peer.accept()
        except OSError:
            peer.ended = True
        return True

    def hook(self, name, peer, message):
        hook = self.on.get(name)
        return bool(hook and hook(self, peer, message))

    def handle(self, peer, message):
        if peer.kind == IO:
            command = Command(message)
            if not self.hook("command", peer, command):
                self.perform(peer, command)
            return
        kind, _, sequence = struct.unpack_from("<HHI", message)
        name, answer = {LOGIN: ("login", self.login), GRANT: ("grant", self.grant), LIST: ("list", self.list), LOGOUT: ("logout", self.logout),
                        PING: ("ping", self.ping), FENCE: ("fence", self.fence)}[kind]
        if not self.hook(name, peer, message):
            for said in answer(sequence, message):
                peer.send(said)

    # What an honest server says.

    def login(self, sequence, message, **changed):
        asked = dict(zip(LOGIN_FIELDS, struct.unpack_from(LOGIN_FORMAT, message, 8)))
        self.logins.append(asked)
        self.sessions += 1
        ram = self.kind == KIND_RAM
        depth = min(asked["depth"], 16)
        fields = {"session": self.sessions, "export_uuid": self.export_uuid, "instance": self.instance, "size": SIZE, "access": asked["access"],
                  "kind": self.kind, "slab_shift": SLAB_SHIFT if ram else 0, "features": 0, "queues": asked["queues"], "depth": 0 if ram else depth,
                  "inline": 0 if ram else min(asked["inline"], PAGE), "logical": BLOCK, "physical": BLOCK, "io_min": BLOCK, "io_opt": 0,
                  "max_io": 1 << 20, "max_discard": 0, "discard_granularity": 0, "max_zeroes": 0, "credit": 0 if ram else depth,
                  "flags": 1 if asked["resume"] else 0, "key": 7, "server_id": self.server_id,
                  "lease_ms": 60000, "extent_number": self.extents, **dict.fromkeys(ATOMIC_FIELDS, 0), **self.fields, **changed}
        fields = {name: value(asked) if callable(value) else value for name, value in fields.items()}
        body = b"".join(struct.pack("<" + form, fields[name]) for name, form in REPLY_FORMAT)
        return [reply(LOGIN, sequence, body)]

    def grants(self):
        shift = self.fields.get("slab_shift", SLAB_SHIFT)
        size = self.fields.get("size", SIZE)
        count = -(-size >> shift) if isinstance(size, int) else 0
        return [(self.base + (slab << shift) % SIZE, min(1 << shift, size - (slab << shift)), self.disk_mr.contents.rkey) for slab in range(count)]

    def grant(self, sequence, message, change=lambda grants: grants, **changed):
        first, count = struct.unpack_from("<II", message, 8)
        grants = change(self.grants()[first : first + min(count, 247)])
        fields = {"first": first, "count": len(grants), **changed}
        return [reply(GRANT, sequence, struct.pack("<II", fields["first"], fields["count"]) + b"".join(struct.pack("<QII", *g) for g in grants))]

    def list(self, sequence, message):
        return [reply(LIST, sequence, bytes(16))]

    def logout(self, sequence, message):
        return [reply(LOGOUT, sequence)]

    def ping(self, sequence, message):
        return [event(PONG)]

    def fence(self, sequence, message):
        return [event(FENCED, message[8:])]

    def perform(self, peer, command, code=0):
        """Does a command and answers it."""
        c = command
        if c.op == READ:
            data = self.memory[c.offset : c.offset + c.length]
            if c.inline:
                return peer.send(data, WR_SEND_WITH_IMMEDIATE, c.immediate())
            peer.move(WR_RDMA_WRITE, c.addr, c.rkey, c.length, data)
        elif c.op == WRITE:
            data = c.data if c.inline else peer.move(WR_RDMA_READ, c.addr, c.rkey, c.length)
            if data is not None:
                self.memory[c.offset : c.offset + c.length] = data
        return peer.send(c.response(code))

    # For the cases.

    def control(self):
        """The control connection that is there now."""
        return next(peer for peer in reversed(self.peers) if peer.kind == CONTROL)

    def io(self):
        return next(peer for peer in reversed(self.peers) if peer.kind == IO)

    def say(self, *messages):
        """Says something on the control connection, unasked."""
        with self.lock:
            for said in messages:
                self.control().send(said)

    def numbered(self, message):
        """The message; an extent without a number gets one that is larger than those before."""
        if len(message) == 24 and message[:2] == struct.pack("<H", EXTENT) and message[20:] == bytes(4):
            self.extents += 1
            message = message[:20] + struct.pack("<I", self.extents)
        return message

    def flood(self, make, stop):
        """Says make(0), make(1), ... as fast as the client takes it, until stop(TAKEN). Returns how many it took.

        Not more at a time than the client has receives for: else it would have to wait for the RNR timer.
        """
        peers, n, taken = {}, 0, 0
        while not stop(taken):
            with self.lock:
                peer = next((peer for peer in self.peers if peer.kind == CONTROL and peer.cq and not peer.ended), None)
                if peer and not peer.under_way:
                    peers[id(peer)] = peer
                    peer.send_all([make(n), make(n + 1)])
                    n += 2
                if peer:
                    peer.look()
            taken = sum(peer.taken for peer in peers.values())
            time.sleep(0.0002)
        return taken


# --- the map --------------------------------------------------------------------------------------


class Task(threading.Thread):
    """Something that takes its time, or hangs."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self.function, self.arguments, self.value, self.error = function, arguments, None, None
        self.began = time.monotonic()
        self.start()

    def run(self):
        try:
            self.value = self.function(*self.arguments)
        except OSError as error:
            self.error = errno.errorcode[error.errno]

    def end(self, what, seconds):
        """The error, or None."""
        self.join(seconds)
        if self.is_alive():
            raise Hangs(f"{what} does not end within {seconds:.0f} s")
        return self.error


# So many changes may there be in any second, whatever the server does.
UEVENTS_MAX = 10


class Uevents(threading.Thread):
    """Notes when user space is told of a change of a device.

    That a disk comes and goes is no change: the case itself makes and removes its maps.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.times = []
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((0, 1))
        self.start()

    def run(self):
        while True:
            try:
                changes = b"ACTION=change" in self.socket.recv(16384).split(b"\0")
            except OSError:
                # There were more than the socket has room for.
                changes = 1000
            self.times.extend([time.monotonic()] * changes)

    def since(self, start):
        """How many there were since then, and the most of them in a second."""
        times = [at for at in self.times if at >= start]
        return len(times), max((sum(first <= at < first + 1 for at in times) for first in times), default=0)


class Hangs(Failed):
    """What follows would hang, too."""


class Map:
    """The map, not enabled yet."""

    def __init__(self, addresses=None, **settings):
        self.at = CONFIG + "hostile/"
        os.mkdir(self.at)
        settings = {"export": "e", "queues": 1, "depth": 16, "no_path_timeout_ms": 5000, **settings}
        for name, value in settings.items():
            store(self.at + name, str(value))
        self.paths = ""
        for path, address in zip("ab", addresses or [ADDRESS]):
            self.add(path, address)
        self.file = None

    def add(self, path, address):
        os.mkdir(self.at + "paths/" + path)
        self.paths += path
        store(f"{self.at}paths/{path}/addr", f"{address}:{PORT}")
        store(f"{self.at}paths/{path}/enable", "1")

    def enable(self):
        return Task(store, self.at + "enable", "1").end("enable", ENABLE)

    def on(self):
        """Enables it, which has to work."""
        error = self.enable()
        if error:
            raise Failed(f"enable: {self.last_error()}")
        self.device = "/dev/" + show(self.at + "device")
        return self

    def last_error(self):
        return show(self.at + "last_error")

    def reconnects(self):
        return int(show(self.at + "paths/a/reconnects"))

    def size(self):
        """Bytes of the disk."""
        return int(show(f"/sys/class/block/{self.device[5:]}/size")) * 512

    def state(self):
        return show(self.at + "state")

    def open(self, flags=os.O_RDWR):
        if self.file is None:
            self.file = os.open(self.device, flags | os.O_DIRECT)
        return self.file

    def read(self, offset, length=PAGE):
        file = self.open()

        def read():
            room = mmap.mmap(-1, length)
            # What was never read is not to be taken for zeroes.
            room[:] = b"?" * length
            done = os.preadv(file, [room], offset)
            return room[:done]

        return Task(read)

    def write(self, offset, data):
        file = self.open()

        def write():
            room = mmap.mmap(-1, len(data))
            room[:] = data
            return os.pwritev(file, [room], offset)

        return Task(write)

    def flush(self):
        return Task(os.fsync, self.open())

    def soon(self, condition, why, seconds=PATIENT):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"{why() if callable(why) else why}; {self.state()}, {self.last_error()!r}")
            time.sleep(0.02)

    def says(self, pattern, seconds=PATIENT):
        """Its last_error, or that of its path, will match."""
        seen = set()

        def said():
            seen.update(show(self.at + name + "last_error") for name in ("", *(f"paths/{path}/" for path in self.paths)))
            return any(re.search(pattern, text) for text in seen)

        self.soon(said, lambda: f"no {pattern!r} in {seen}", seconds)

    def works(self, server):
        """What is on the server's disk is read, and what is written gets there."""
        for length, offset in (PAGE, 1 << 20), (LARGE, 2 << 20):
            read = self.read(offset, length)
            expect(f"a read of {length} bytes", read.end("a read", PATIENT), None)
            if read.value != server.memory[offset : offset + length]:
                raise Failed(f"{length} bytes were read that are not those of the server")
            data = os.urandom(length)
            expect(f"a write of {length} bytes", self.write(offset, data).end("a write", PATIENT), None)
            if server.memory[offset : offset + length] != data:
                raise Failed(f"{length} bytes that were written are not there")

    def force(self):
        expect("force", Task(store, self.at + "enable", "force").end("force", FORCE), None)

    def remove(self):
        if self.file is not None:
            os.close(self.file)
            self.file = None
        for path in self.paths:
            store(f"{self.at}paths/{path}/enable", "0")
            os.rmdir(f"{self.at}paths/{path}")
        os.rmdir(self.at)


# --- cases ----------------------------------------------------------------------------------------

# (group, words, function, arguments)
CASES = []


def cases(group, *table):
    """Makes a case of each (words, argument...) of the table.

    It is the function below, which is called with a Begin and the arguments.
    """

    def add(function):
        CASES.extend((group, words, function, arguments) for words, *arguments in table)
        return function

    return add


def case(group, words):
    return cases(group, (words,))


class Begin:
    """What a case makes its server and its map with.

    What is left of them at its end is ended by force, and removed.
    """

    def __init__(self):
        self.servers, self.maps = [], []

    def server(self, *arguments, **fields):
        self.servers.append(Server(*arguments, **fields))
        return self.servers[-1]

    def map(self, **settings):
        self.maps.append(Map(**settings))
        return self.maps[-1]

    def end(self):
        try:
            for m in self.maps:
                m.force()
                m.remove()
        finally:
            for server in self.servers:
                server.close()


def once(function):
    """A hook that breaks the protocol the first time only."""
    times = []

    def hook(*arguments):
        if times:
            return False
        times.append(1)
        return function(*arguments) is not False

    return hook


def saying(*messages):
    """A hook that says this instead."""

    def hook(server, peer, message):
        sequence = struct.unpack_from("<I", message, 4)[0] if isinstance(message, bytes) else 0
        for said in messages:
            peer.send(said(server, sequence, message) if callable(said) else said)
        return True

    return hook


def silent(*_):
    return True


def hangs_up(_, peer, __):
    peer.disconnect()
    return True


def refused(begin, server, pattern, most=8 * PATIENCE, **settings):
    """The map does not come up, and says why, in the 5 s of configfs.rst and some for a slow guest."""
    m = begin.map(**settings)
    start = time.monotonic()
    error = m.enable()
    took = time.monotonic() - start
    if error is None:
        raise Failed("enable succeeds")
    if took > most:
        raise Failed(f"enable takes {took:.1f} s")
    text = m.last_error()
    if not text.startswith(error + " ") or not re.search(pattern, text):
        raise Failed(f"last_error after {error} is {text!r}, without {pattern!r}")
    return f"{text} ({took:.1f} s)"


NOT_FARBLK = "is no farblk server"

# The answer of the connection manager.
@cases("connect",
       ("no private data", b"", NOT_FARBLK),
       ("half of the magic", b"FA", NOT_FARBLK),
       ("another magic", struct.pack("<4sHH16x", b"FARC", VERSION, 0), NOT_FARBLK),
       ("an older version", struct.pack("<4sHH16x", MAGIC, OLDEST - 1, 0), NOT_FARBLK),
       ("version 0", struct.pack("<4sHH16x", MAGIC, 0, 0), NOT_FARBLK),
       ("a version of the future", struct.pack("<4sHH16x", MAGIC, 0xFFFF, 0), NOT_FARBLK),
       ("196 random bytes", b"x" * 196, NOT_FARBLK))
def connect_reply(begin, private, pattern):
    for hook in "connect", "connect_io":
        server = begin.server(on={hook: lambda _, peer, __: peer.accept(private) or True})
        text = refused(begin, server, pattern)
        begin.end()
        begin.__init__()
    return text


@cases("connect",
       ("a rejection of no byte", b"", "refused and did not say why"),
       ("a rejection of another magic", rejection(5, "x", magic=b"FARC"), NOT_FARBLK),
       ("a rejection that is a grant", rejection(0), NOT_FARBLK),
       ("a rejection for a reason of the future", rejection(999, "too early"), "too early"),
       ("a rejection whose text is too long", rejection(5, "", 97), NOT_FARBLK),
       ("a rejection whose text is no text", rejection(5, b"\xff\xfe\xfd"), "EACCES|" + NOT_FARBLK),
       ("a rejection with control characters", rejection(5, "a\nb\x1b[2J"), r"^E[A-Z]+ [ -~]*$"),
       # The last request has no time left for an answer.
       ("no place, again and again", rejection(hostile.AGAIN) + bytes(16), "^EAGAIN too many ask the server at once$"))
def connect_rejection(begin, private, pattern):
    for hook in "connect", "connect_io":
        server = begin.server(on={hook: lambda _, peer, __: peer.reject(private) or True})
        text = refused(begin, server, pattern)
        begin.end()
        begin.__init__()
    return text


@cases("connect",
       ("no answer to a connection", "connect", silent, "no answer from"),
       ("no answer to an I/O connection", "connect_io", silent, "no answer from"),
       ("a connection that ends at once", "connect", lambda _, peer, __: peer.accept() or peer.disconnect() or True, "E[A-Z]+ "))
def connect_silence(begin, hook, function, pattern):
    return refused(begin, begin.server(on={hook: function}), pattern)


MALFORMED = "EPROTO malformed reply: "


def atomic(most, unit, largest, boundary=0):
    return {"atomic_max": most, "atomic_min": unit, "atomic_largest": largest, "atomic_boundary": boundary}


# Fields of the reply to a login.
@cases("login",
       ("session 0", {"session": 0}, MALFORMED),
       ("a nil UUID", {"export_uuid": bytes(16)}, MALFORMED),
       ("a nil instance", {"instance": bytes(16)}, MALFORMED),
       ("reservation key 0", {"key": 0}, MALFORMED),
       ("a nil server id", {"server_id": bytes(16)}, MALFORMED),
       ("a lease of no time", {"lease_ms": 0}, MALFORMED),
       ("flags of the future", {"flags": 0x8000}, MALFORMED),
       ("size 0", {"size": 0}, MALFORMED),
       ("a size beyond a file offset", {"size": 1 << 63}, MALFORMED),
       ("the largest size there could be", {"size": (1 << 64) - 512}, MALFORMED),
       ("a size of no whole blocks", {"size": SIZE + 1}, MALFORMED),
       ("less access than was asked for", {"access": RO}, MALFORMED),
       ("access 2", {"access": 2}, MALFORMED),
       ("kind 2", {"kind": 2}, MALFORMED),
       ("an unknown feature", {"features": 8}, MALFORMED),
       ("FUA without a cache", {"features": 2}, MALFORMED),
       ("no queues", {"queues": 0}, MALFORMED),
       ("more queues than were asked for", {"queues": 2}, MALFORMED),
       ("65535 queues", {"queues": 0xFFFF}, MALFORMED),
       ("depth 0", {"depth": 0, "credit": 0}, MALFORMED),
       ("more depth than was asked for", {"depth": 17}, MALFORMED),
       ("depth 65535", {"depth": 0xFFFF}, MALFORMED),
       ("more inline data than was asked for", {"inline": 16384}, MALFORMED),
       ("inline data of 4 GiB", {"inline": 0xFFFFFFFF}, MALFORMED),
       ("blocks of no byte", {"logical": 0}, MALFORMED),
       ("blocks of 256 bytes", {"logical": 256}, MALFORMED),
       ("blocks of 513 bytes", {"logical": 513}, MALFORMED),
       ("blocks of 8 KiB", {"logical": 8192, "physical": 8192, "io_min": 8192}, MALFORMED),
       ("blocks of 2 GiB", {"logical": 1 << 31, "physical": 1 << 31, "io_min": 1 << 31}, MALFORMED),
       ("physical blocks of no byte", {"physical": 0}, MALFORMED),
       ("physical blocks of 2 MiB", {"physical": 2 << 20, "io_min": 2 << 20}, MALFORMED),
       ("a smallest I/O of 0", {"io_min": 0}, MALFORMED),
       ("a smallest I/O of odd size", {"io_min": 513}, MALFORMED),
       ("a smallest I/O of 4 GiB", {"io_min": (1 << 32) - 512}, MALFORMED),
       ("a best I/O of odd size", {"io_opt": 513}, MALFORMED),
       ("a best I/O of 4 GiB", {"io_opt": (1 << 32) - 512}, MALFORMED),
       ("a largest I/O of 0", {"max_io": 0}, MALFORMED),
       ("a largest I/O of 4 KiB", {"max_io": 4096}, MALFORMED),
       ("a largest I/O of 4 GiB", {"max_io": (1 << 32) - 512}, MALFORMED),
       ("a largest I/O of odd size", {"max_io": 65537}, MALFORMED),
       ("a largest discard of odd size", {"max_discard": 513, "discard_granularity": 512}, MALFORMED),
       ("discards of no unit", {"max_discard": 512}, MALFORMED),
       ("a unit of no discards", {"discard_granularity": 512}, MALFORMED),
       ("a unit of discards of odd size", {"max_discard": 4096, "discard_granularity": 513}, MALFORMED),
       ("a largest write of zeroes of odd size", {"max_zeroes": 513}, MALFORMED),
       ("a largest secure erase of odd size", {"max_erase": 513, "erase_granularity": 512}, MALFORMED),
       ("secure erases of no unit", {"max_erase": 512}, MALFORMED),
       ("a unit of no secure erases", {"erase_granularity": 512}, MALFORMED),
       ("an atomic write of more than any write", atomic(2 << 20, 512, 2 << 20), MALFORMED),
       ("a unit of atomic writes that is no power of two", atomic(6 << 10, 3 << 10, 4 << 10), MALFORMED),
       ("a unit of atomic writes below a block", atomic(4096, 256, 4096), MALFORMED),
       ("a unit of atomic writes of no byte", atomic(4096, 0, 4096), MALFORMED),
       ("a largest unit of atomic writes that is no power of two", atomic(16 << 10, 1024, 12 << 10), MALFORMED),
       ("a largest unit of atomic writes that is less than the smallest", atomic(16 << 10, 8192, 4096), MALFORMED),
       ("a largest unit of atomic writes beyond the most", atomic(4096, 512, 8192), MALFORMED),
       ("a boundary within an atomic write", atomic(8192, 512, 8192, 4096), MALFORMED),
       ("a boundary that is no power of two", atomic(8192, 512, 8192, 12 << 10), MALFORMED),
       ("a boundary of no atomic writes", atomic(0, 0, 0, 4096), MALFORMED),
       ("credit 0", {"credit": 0}, MALFORMED),
       ("more credit than depth", {"credit": 17}, MALFORMED))
def login_field(begin, fields, pattern):
    return refused(begin, begin.server(**fields), pattern)


# What is within the bounds, and odd: the map works.
@cases("login",
       ("the largest discards and zeroes there could be",
        {"max_discard": (1 << 32) - 512, "discard_granularity": 512, "max_zeroes": (1 << 32) - 512}),
       ("the largest secure erases there could be", {"max_erase": (1 << 32) - 512, "erase_granularity": 512}),
       ("a unit of secure erases of 2 GiB", {"max_erase": (1 << 32) - 512, "erase_granularity": 1 << 31}),
       ("the largest atomic writes there could be", atomic(1 << 20, 512, 1 << 20, 1 << 31)),
       ("atomic writes of one size", atomic(1 << 20, 1 << 20, 1 << 20, 1 << 20)),
       ("atomic writes of an odd most", atomic((1 << 20) - 512, 512, 512)),
       ("a unit of discards of 2 GiB", {"max_discard": 512, "discard_granularity": 1 << 31}),
       ("a unit of discards of 4 GiB", {"max_discard": (1 << 32) - 512, "discard_granularity": (1 << 32) - 512}),
       ("the smallest I/O there could be", {"max_io": 64 << 10}),
       ("physical blocks of 1 MiB", {"physical": 1 << 20, "io_min": 1 << 20}),
       ("no inline data", {"inline": 0}),
       ("a depth of one", {"depth": 1, "credit": 1}),
       ("a credit of one", {"credit": 1}),
       ("a disk of 4 EiB", {"size": 1 << 62}),
       ("the longest lease there could be", {"lease_ms": 0xFFFFFFFF}),
       ("the last number of an extent there could be", {"extent_number": 0xFFFFFFFF}),
       ("the largest hints there could be", {"io_min": 16 << 20, "io_opt": 16 << 20}),
       ("the largest disk there could be", {"size": (1 << 63) - 512}))
def login_odd(begin, fields):
    server = begin.server(**fields)
    m = begin.map()
    if m.enable() is not None:
        text = m.last_error()
        if not re.match("E[A-Z]+ .", text):
            raise Failed(f"last_error is {text!r}")
        return text
    m.device = "/dev/" + show(m.at + "device")
    ahead = int(show(f"/sys/class/block/{m.device[5:]}/queue/read_ahead_kb"))
    if ahead > 64 << 10:
        raise Failed(f"it reads {ahead} KiB ahead")
    if "credit" not in fields:
        m.works(server)
    return None


def with_login(change):
    """A hook that changes the honest reply."""

    def hook(server, peer, message):
        sequence, = struct.unpack_from("<I", message, 4)
        for said in change(server.login(sequence, message)[0], sequence):
            peer.send(said)
        return True

    return hook


# The message that answers a login.
@cases("login",
       ("no byte", lambda whole, _: [b""], "EPROTO|EMSGSIZE|EINVAL"),
       ("half a header", lambda whole, _: [whole[:4]], "EPROTO"),
       ("a header alone", lambda whole, _: [head(LOGIN | REPLY, 8, 1)], "EPROTO"),
       ("a byte too few", lambda whole, _: [whole[:-1]], "EPROTO"),
       ("a byte too many", lambda whole, _: [whole + b"x"], "EPROTO"),
       ("a length that is not its own", lambda whole, s: [head(LOGIN | REPLY, len(whole) - 1, s) + whole[8:]], "EPROTO"),
       ("the reply to another request", lambda whole, s: [head(LOGIN | REPLY, len(whole), s + 1) + whole[8:]], "EPROTO"),
       ("the reply to a grant", lambda whole, s: [head(GRANT | REPLY, len(whole), s) + whole[8:]], "EPROTO"),
       ("a reply of unknown kind", lambda whole, s: [head(77 | REPLY, len(whole), s) + whole[8:]], "EPROTO"),
       ("a request", lambda whole, s: [head(LOGIN, len(whole), s) + whole[8:]], "EPROTO"),
       ("a grant with the length of a refusal", lambda whole, s: [reply(LOGIN, s)], "EPROTO"),
       ("a refusal with the length of a grant", lambda whole, s: [whole[:8] + status(5, "x") + whole[112:]], "EPROTO"),
       ("a refusal for a reason of the future", lambda _, s: [reply(LOGIN, s, code=999, text="too early")], "EPROTO too early"),
       ("a refusal without words", lambda _, s: [reply(LOGIN, s, code=5)], "EACCES ."),
       ("a refusal with the words of another language", lambda _, s: [reply(LOGIN, s, code=5, text=b"\xff\xfe")], "EPROTO|EACCES ."),
       ("a refusal with control characters", lambda _, s: [reply(LOGIN, s, code=5, text="a\nb\0c")], r"^E[A-Z]+ [ -~]+$"),
       ("an extent before the reply", lambda whole, _: [extent(), whole], "EPROTO malformed event"),
       ("a pong before the reply", lambda whole, _: [event(PONG), whole], "EPROTO malformed event"),
       ("an event of unknown kind", lambda whole, _: [event(78), whole], "EPROTO"),
       ("more than there is room for", lambda whole, _: [whole + bytes(4096)], "E[A-Z]+ ."),
       ("as much as there is room for", lambda whole, s: [head(LOGIN | REPLY, 4096, s) + bytes(4088)], "EPROTO"))
def login_message(begin, change, pattern):
    return refused(begin, begin.server(on={"login": with_login(change)}), pattern)


@cases("login",
       ("silence", silent, "ETIMEDOUT (the server does not answer|no answer)"),
       ("the end", hangs_up, "E[A-Z]+ ."),
       ("pongs for ever, and no reply", lambda server, peer, _: [peer.send(event(PONG)) for _ in range(250)] and True, "EPROTO malformed event"))
def login_silence(begin, hook, pattern):
    return refused(begin, begin.server(on={"login": hook}), pattern)


@case("login", "the reply twice")
def login_twice(begin):
    begin.server(on={"login": once(with_login(lambda whole, _: [whole, whole]))})
    m = begin.map()
    m.enable()
    return m.last_error()


# --- grants ---------------------------------------------------------------------------------------


@cases("grants",
       ("slabs of 32 KiB", {"slab_shift": 15}, MALFORMED),
       ("slabs of 4 GiB", {"slab_shift": 32}, MALFORMED),
       ("slabs of 2^255", {"slab_shift": 255}, MALFORMED),
       ("2^32 slabs", {"slab_shift": 16, "size": 1 << 48}, MALFORMED),
       ("2^47 slabs", {"slab_shift": 16, "size": (1 << 63) - 512}, MALFORMED),
       ("RAM with atomic writes", atomic(4096, 512, 4096), MALFORMED),
       ("RAM with secure erases", {"max_erase": 4096, "erase_granularity": 512}, MALFORMED))
def grants_slabs(begin, fields, pattern):
    return refused(begin, begin.server(KIND_RAM, **fields), pattern)


# o1. The memory for the list of so many slabs is asked for at once, and must be no more than the
# kernel gives.
@cases("slabs",
       ("2^20 slabs, of which none is granted", {"slab_shift": 16, "size": 1 << 36}),
       ("2^28 slabs, of which none is granted", {"slab_shift": 16, "size": 1 << 44}),
       ("2^32 - 1 slabs, of which none is granted", {"slab_shift": 31, "size": (1 << 63) - (1 << 31)}))
def slabs(begin, fields):
    server = begin.server(KIND_RAM, on={"grant": silent}, **fields)
    return refused(begin, server, "slabs|does not answer|no answer|memory|EPROTO|ENOMEM")


def with_grant(**changed):
    """A hook that changes the honest grants."""

    def hook(server, peer, message):
        for said in server.grant(struct.unpack_from("<I", message, 4)[0], message, **changed):
            peer.send(said)
        return True

    return hook


@cases("grants",
       ("another first slab", with_grant(first=1), MALFORMED),
       ("none", with_grant(change=lambda grants: []), MALFORMED),
       ("one more than was asked for", with_grant(change=lambda grants: grants + grants[:1]), MALFORMED),
       ("fewer than it says", with_grant(count=4, change=lambda grants: grants[:3]), MALFORMED),
       ("more than it says", with_grant(count=3, change=lambda grants: grants[:4]), MALFORMED),
       ("2^32 - 1 as it says", with_grant(count=0xFFFFFFFF), MALFORMED),
       ("a slab of no byte", with_grant(change=lambda grants: [(addr, 0, rkey) for addr, _, rkey in grants]), MALFORMED),
       ("a slab that is too long", with_grant(change=lambda grants: [(addr, length + 1, rkey) for addr, length, rkey in grants]), MALFORMED),
       ("a slab that wraps around", with_grant(change=lambda grants: [((1 << 64) - 4096, length, rkey) for _, length, rkey in grants]), MALFORMED),
       ("a refusal", lambda _, peer, message: peer.send(reply(GRANT, struct.unpack_from("<I", message, 4)[0], code=8)) or True, "ENOMEM"),
       ("silence", silent, "ETIMEDOUT (the server does not answer|no answer)"),
       ("the end", hangs_up, "E[A-Z]+ ."),
       ("extents for ever, and no reply", lambda _, peer, __: [peer.send(extent()) for _ in range(200)] and True, "E[A-Z]+ ."))
def grants(begin, hook, pattern):
    return refused(begin, begin.server(KIND_RAM, on={"grant": hook}), pattern)


@case("grants", "one at a time")
def grants_one(begin):
    server = begin.server(KIND_RAM, on={"grant": with_grant(change=lambda grants: grants[:1])})
    begin.map().on().works(server)


@cases("grants",
       ("keys that are none", lambda addr, length, rkey: (addr, length, rkey ^ 0x5A00)),
       ("addresses where nothing is", lambda addr, length, rkey: (addr + (1 << 40), length, rkey)))
def grants_bad(begin, change):
    begin.server(KIND_RAM, on={"grant": with_grant(change=lambda grants: [change(*g) for g in grants])})
    m = begin.map(no_path_timeout_ms=1000)
    m.enable()
    return m.last_error()


# --- answers to commands --------------------------------------------------------------------------


def answering(*messages):
    """A hook that answers the command with these; those that can be called are called with it.

    Not the first ones, which read partitions.
    """

    def hook(server, peer, command):
        if not server.armed:
            return False
        for said in messages:
            said = said(command) if callable(said) else said
            peer.send(*said) if isinstance(said, tuple) else peer.send(said)
        return True

    return once_armed(hook)


def once_armed(function):
    """Breaks the protocol once, when the server is armed."""
    times = []

    def hook(server, peer, command):
        if times or not server.armed or not function(server, peer, command):
            return False
        times.append(1)
        return True

    return hook


Server.armed = False


def data(command, length=PAGE, **numbers):
    return (b"!" * length, WR_SEND_WITH_IMMEDIATE, command.immediate(**numbers))


# The answer to an inline read. The connection ends, and the read is done again, on a new one.
@cases("answers",
       ("no byte", b""),
       ("a response that is too short", lambda c: c.response(1)[:15]),
       ("a response that is too long", lambda c: c.response(1) + b"x"),
       ("a response of another tag", lambda c: c.response(1, tag=c.tag ^ 1)),
       ("a response of a tag beyond the depth", lambda c: c.response(1, tag=16)),
       ("a response of the last tag there could be", lambda c: c.response(1, tag=0xFFFF)),
       ("a response of another generation", lambda c: c.response(1, generation=c.generation ^ 1)),
       ("a response of the generation before", lambda c: c.response(1, generation=(c.generation - 1) % 2**32)),
       ("an unknown status", lambda c: c.response(15)),
       ("the last status there could be", lambda c: c.response(0xFFFF)),
       ("a response without credit", lambda c: c.response(1, credit=0)),
       ("a response with credit beyond the depth", lambda c: c.response(1, credit=17)),
       ("a response with something in its reserved field", lambda c: c.response(1, rest=b"x" * 6)),
       ("a response ok without the data", lambda c: c.response(0)),
       ("data that are too short", lambda c: data(c, BLOCK)),
       ("data that are too long", lambda c: data(c, PAGE + 1)),
       ("data of no byte", lambda c: data(c, 0)),
       ("data of another tag", lambda c: data(c, tag=c.tag ^ 1)),
       ("data of a tag beyond the depth", lambda c: data(c, tag=1023)),
       ("data of another generation", lambda c: data(c, generation=c.generation ^ 1)),
       ("data with credit beyond the depth", lambda c: data(c, credit=1024)),
       ("data without immediate data", lambda c: b"!" * PAGE),
       ("a response with immediate data", lambda c: (c.response(0), WR_SEND_WITH_IMMEDIATE, c.immediate())),
       ("an answer longer than any receive", lambda c: b"!" * (64 << 10)),
       ("a response that invalidates a key that is none", lambda c: (c.response(1), WR_SEND_WITH_INVALIDATE, 0xDEAD00)),
       ("a response that invalidates key 0", lambda c: (c.response(1), WR_SEND_WITH_INVALIDATE, 0)))
def answer(begin, said):
    server = begin.server(on={"command": answering(said)})
    m = begin.map().on()
    server.armed = True
    broken(m, server, m.read(3 << 20), 3 << 20)


def broken(m, server, read, offset, length=PAGE):
    """The connection has ended; what was read is right nevertheless, and the map goes on."""
    expect("the read", read.end("a read", PATIENT), None)
    if read.value != server.memory[offset : offset + length]:
        raise Failed(f"what was read is {read.value[:16]}..., and is not the server's")
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 1)


# Credit does not shrink: answers may be sent in another order than the server wrote them.
@cases("answers",
       ("a response with less credit than before", lambda c: c.response(1, credit=1), "EIO"),
       ("data with less credit than before", lambda c: data(c, credit=1), None))
def answer_credit(begin, said, error):
    held = []

    def hook(server, peer, command):
        if server.armed:
            held.append(command)
        return server.armed

    server = begin.server(on={"command": answering(said)})
    m = begin.map().on()
    server.armed = True
    expect("the read", m.read(3 << 20).end("a read", PATIENT), error)
    # As many commands as before are in flight at a time.
    server.on["command"] = hook
    reads = [m.read(page * PAGE) for page in range(8)]
    m.soon(lambda: len(held) == 8, f"{len(held)} commands of 8 are in flight")
    with server.lock:
        server.armed = False
        for command in held:
            server.perform(server.io(), command)
    for read in reads:
        expect("a read", read.end("a read", PATIENT), None)
    expect("the number of reconnects", m.reconnects(), 0)


# Those to a read by RDMA, whose key the server has.
@cases("answers",
       ("data as immediate data for a read by RDMA", lambda c: data(c, PAGE)),
       ("a response to it twice", lambda c: c.response(1), lambda c: c.response(1)),
       ("a response to it with another key invalidated", lambda c: (c.response(1), WR_SEND_WITH_INVALIDATE, c.rkey ^ 0x1)))
def answer_large(begin, *said):
    server = begin.server(on={"command": answering(*said)})
    m = begin.map().on()
    server.armed = True
    # The first answer may be the end of it: with an error.
    error = m.read(3 << 20, LARGE).end("a read", PATIENT)
    if error not in (None, "EIO"):
        raise Failed(f"the read ends with {error}")
    m.works(server)
    m.soon(lambda: m.reconnects() == 1, "the connection goes on")


@case("answers", "data for a write")
def answer_write(begin):
    server = begin.server(on={"command": answering(lambda c: data(c, PAGE))})
    m = begin.map().on()
    server.armed = True
    expect("the write", m.write(3 << 20, b"w" * PAGE).end("a write", PATIENT), None)
    expect("what was written", server.memory[3 << 20 : (3 << 20) + PAGE], b"w" * PAGE)
    m.works(server)
    expect("the number of reconnects", m.reconnects(), 1)


@case("answers", "a response to nothing, and an answer twice")
def answer_nothing(begin):
    server = begin.server()
    m = begin.map().on()
    m.works(server)
    for number in 1, 2:
        with server.lock:
            server.io().send(struct.pack("<HHIH6x", 1, 0, 5, 16))
        m.soon(lambda: m.reconnects() == number, "the connection goes on")
        m.works(server)


@case("answers", "a thousand responses to nothing at once")
def answer_flood(begin):
    server = begin.server()
    m = begin.map().on()
    with server.lock:
        peer = server.io()
        for _ in range(200):
            peer.send(struct.pack("<HHIH6x", 1, 0, 5, 16))
    m.soon(lambda: m.reconnects() >= 1, "the connection goes on")
    m.works(server)


@cases("answers", *((f"status {code}", code) for code in range(1, 15)))
def answer_status(begin, code):
    server = begin.server(on={"command": answering(lambda c: c.response(code))})
    m = begin.map().on()
    server.armed = True
    error = m.read(3 << 20).end("a read", PATIENT)
    if error is None and code != 11:
        raise Failed("the read succeeds")
    m.works(server)
    return error


# o2. Only a SEND is a message: an RDMA WRITE with immediate data completes a receive, too, whose
# buffer it leaves as it was.
@cases("immediate",
       ("an RDMA WRITE with immediate data for a read that was not answered", PAGE),
       ("an RDMA WRITE of no byte with immediate data", 0))
def write_with_immediate(begin, length):
    held = []

    def hook(server, peer, command):
        if not server.armed or server.attacked:
            return False
        held.append(command)
        if len(held) == 2:
            large, small = sorted(held, key=lambda c: -c.length)
            peer.post(WR_RDMA_WRITE_WITH_IMMEDIATE, peer.data, length, large.addr, large.rkey, small.immediate())
            server.attacked = True
        return True

    server = begin.server(on={"command": hook})
    server.attacked = False
    m = begin.map().on()
    # So that receives have something to show.
    for page in range(40):
        expect("a read", m.read((4 << 20) + page * PAGE).end("a read", PATIENT), None)
    server.armed = True
    large, small = m.read(2 << 20, LARGE), m.read(3 << 20)
    broken(m, server, small, 3 << 20)
    expect("the large read", large.end("a read", PATIENT), None)


# What the server does to memory of the client by RDMA.
@cases("memory",
       ("a write with a key that is none", lambda peer, c: peer.move(WR_RDMA_WRITE, c.addr, c.rkey ^ 0x5A00, LARGE)),
       ("a write with key 0", lambda peer, c: peer.move(WR_RDMA_WRITE, c.addr, 0, LARGE)),
       ("a write with the generation of the key before", lambda peer, c: peer.move(WR_RDMA_WRITE, c.addr, c.rkey - 1, LARGE)),
       ("a write before the memory", lambda peer, c: peer.move(WR_RDMA_WRITE, c.addr - PAGE, c.rkey, LARGE)),
       ("a write beyond the memory", lambda peer, c: peer.move(WR_RDMA_WRITE, c.addr + PAGE, c.rkey, LARGE)),
       ("a write of more than the memory", lambda peer, c: peer.move(WR_RDMA_WRITE, c.addr, c.rkey, LARGE + 1)),
       ("a write to address 0", lambda peer, c: peer.move(WR_RDMA_WRITE, 0, c.rkey, LARGE)),
       ("a read of what may only be written", lambda peer, c: peer.move(WR_RDMA_READ, c.addr, c.rkey, LARGE)))
def memory(begin, attack):
    done = []

    def hook(_, peer, command):
        if command.length != LARGE:
            return False
        done.append(attack(peer, command))
        return True

    server = begin.server(on={"command": once_armed(hook)})
    m = begin.map().on()
    server.armed = True
    broken(m, server, m.read(3 << 20, LARGE), 3 << 20, LARGE)
    expect("what the server got", done, [None])


@case("memory", "a write of what may only be read")
def memory_write(begin):
    done = []

    def hook(_, peer, command):
        if command.length != LARGE:
            return False
        done.append(peer.move(WR_RDMA_WRITE, command.addr, command.rkey, LARGE, b"!" * LARGE))
        return True

    server = begin.server(on={"command": once_armed(hook)})
    m = begin.map().on()
    server.armed = True
    expect("the write", m.write(3 << 20, b"w" * LARGE).end("a write", PATIENT), None)
    expect("what was written", server.memory[3 << 20 : (3 << 20) + LARGE], b"w" * LARGE)
    expect("what the server got", done, [None])


@cases("memory", ("a write after the answer", False), ("a write after an answer that invalidates the key", True))
def memory_late(begin, invalidate):
    seen = []

    def hook(server, peer, command):
        if command.length != LARGE:
            return False
        peer.move(WR_RDMA_WRITE, command.addr, command.rkey, LARGE, server.memory[command.offset : command.offset + LARGE])
        peer.send(*(command.response(), WR_SEND_WITH_INVALIDATE, command.rkey) if invalidate else (command.response(),))
        seen.append((peer, command))
        return True

    server = begin.server(on={"command": once_armed(hook)})
    m = begin.map().on()
    server.armed = True
    read = m.read(3 << 20, LARGE)
    expect("the read", read.end("a read", PATIENT), None)
    (peer, command), = seen
    with server.lock:
        got = peer.move(WR_RDMA_WRITE, command.addr, command.rkey, LARGE, b"!" * LARGE)
    expect("what the server got", got, None)
    if read.value != server.memory[3 << 20 : (3 << 20) + LARGE]:
        raise Failed("what was read has changed")
    m.works(server)


# --- events ---------------------------------------------------------------------------------------


# Said once the map is live: whether the connection ends.
@cases("events",
       ("no byte", True, b""),
       ("half a header", True, event(PONG)[:4]),
       ("a header that says more", True, event(PONG, length=9)),
       ("a header that says less", True, event(EXTENT, bytes(16), length=8)),
       ("an event of unknown kind", True, event(78)),
       ("a request", True, event(PING)),
       ("the reply to nothing", True, reply(LOGIN, 1)),
       ("more than there is room for", True, bytes(5000)),
       ("a pong with something in it", True, event(PONG, b"x")),
       ("a pong that nobody asked for", False, event(PONG)),
       ("an extent that is too short", True, event(EXTENT, bytes(15))),
       ("an extent of no whole blocks", True, extent(SIZE + 1)),
       ("an extent beyond a file offset", True, extent(1 << 63)),
       ("an extent of access 2", True, extent(SIZE, 2)),
       ("a fence that nobody asked for", False, event(FENCED, struct.pack("<QB7x", 1, 3))),
       ("a fence of this very path", None, event(FENCED, struct.pack("<QB7x", 1, 0))),
       ("a fence of an epoch that is to come", None, event(FENCED, struct.pack("<QB7x", 2**64 - 1, 0))),
       ("a fence of no path", True, event(FENCED, struct.pack("<QB7x", 1, 8))),
       ("a fence that is too short", True, event(FENCED, bytes(15))),
       ("a flush of another instance", False, event(FLUSHED, struct.pack("<16sII", b"another instance", 1, 0))),
       ("a flush of a nil instance", True, event(FLUSHED, bytes(24))),
       ("a flush that is too short", True, event(FLUSHED, b"another instance")),
       ("an event of a kind of earlier versions", True, event(11, bytes(16))))
def events(begin, ends, said):
    server = begin.server()
    m = begin.map().on()
    server.say(said)
    if ends:
        m.soon(lambda: m.reconnects() == 1, "the connection goes on")
    m.works(server)
    if ends is False:
        expect("the number of reconnects", m.reconnects(), 0)


@cases("events",
       ("the export is gone", extent(0), 0),
       ("the export is larger than there is", extent((1 << 63) - 512), (1 << 63) - 512),
       ("the export is smaller", extent(1 << 20), 1 << 20),
       ("the export is larger", extent(SIZE * 2), SIZE * 2))
def events_extent(begin, said, size):
    server = begin.server()
    m = begin.map().on()
    server.say(said)
    at = f"/sys/class/block/{m.device[5:]}/size"
    m.soon(lambda: show(at) == str(size // 512), f"the disk has {show(at)} sectors")
    server.say(extent())
    m.soon(lambda: show(at) == str(SIZE // 512), f"the disk has {show(at)} sectors")
    m.works(server)


@case("events", "an export that is smaller than it says: what is beyond fails")
def events_beyond(begin):
    server = begin.server(on={"command": lambda server, peer, c: server.armed and (peer.send(c.response(4)) or True)})
    m = begin.map().on()
    server.say(extent(1 << 40))
    m.soon(lambda: show(f"/sys/class/block/{m.device[5:]}/size") == str((1 << 40) // 512), "it does not grow")
    server.armed = True
    expect("a read beyond", m.read(1 << 39).end("a read", PATIENT), "EIO")


# o4. A map for reading stays one.
@case("readonly", "an extent that may be written, of a map that may not")
def events_access(begin):
    written = []
    server = begin.server(on={"command": lambda _, __, c: c.op == WRITE and written.append(c)})
    m = begin.map(access="ro").on()
    for size in SIZE, SIZE * 2:
        server.say(extent(size, RW))
    m.soon(lambda: show(f"/sys/class/block/{m.device[5:]}/size") == str(SIZE * 2 // 512) or m.reconnects(), "it does not hear of it")
    time.sleep(0.3)
    expect("ro of the disk", show(f"/sys/class/block/{m.device[5:]}/ro"), "1")
    try:
        file = os.open(m.device, os.O_RDWR | os.O_DIRECT)
        try:
            os.pwritev(file, [mmap.mmap(-1, PAGE)], 0)
        finally:
            os.close(file)
        raise Failed("it can be written")
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
    expect("writes that got to the server", written, [])


FLOODS = (("pongs", lambda n: event(PONG)),
          ("extents that flap", lambda n: extent(SIZE * (1 + n // 2 % 2))),
          ("access that flaps", lambda n: extent(SIZE, n // 2 % 2)),
          ("fences", lambda n: event(FENCED, struct.pack("<QB7x", 1, n % 8))))


# How long a flood lasts: two seconds at least, and until the client has taken so many messages.
FLOOD_SECONDS, FLOOD_SECONDS_MAX, FLOOD_MESSAGES = 2, 7, 2000


# o. User space is not flooded, and the map's work item has time for the user's commands.
@cases("events", *(("a flood of " + what, make) for what, make in FLOODS))
def events_flood(begin, make):
    server = begin.server()
    m = begin.map().on()
    start = time.monotonic()

    def stop(taken):
        took = time.monotonic() - start
        return took > FLOOD_SECONDS and (taken >= FLOOD_MESSAGES or took > FLOOD_SECONDS_MAX)

    flood = Task(server.flood, make, stop)
    slowest = 0
    while flood.is_alive():
        asked = time.monotonic()
        m.state()
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.05)
    expect("the flood", flood.end("the flood", PATIENT), None)
    took = time.monotonic() - start
    server.say(extent())
    # The last change is shown later.
    m.soon(lambda: m.size() == SIZE and show(f"/sys/class/block/{m.device[5:]}/ro") == "0", "the last extent is not shown")
    m.works(server)
    said = f"{flood.value} messages in {took:.1f} s, the state in {slowest:.2f} s"
    if slowest > 1.5 * PATIENCE or flood.value < FLOOD_MESSAGES / 4:
        raise Failed(said)
    return said


@cases("events", *((f"a flood of {what}, and force meanwhile", make) for what, make in FLOODS))
def events_flood_force(begin, make):
    server = begin.server()
    m = begin.map().on()
    over = []
    flood = Task(server.flood, make, lambda _: over)
    try:
        time.sleep(1)
        start = time.monotonic()
        m.force()
        took = time.monotonic() - start
    finally:
        over.append(True)
        flood.end("the flood", PATIENT)
    return f"{flood.value} messages, force in {took:.1f} s"


# h. What was said first may come last.
@cases("order",
       ("an older extent after a newer one", 10, 9),
       ("an extent of number 0 after one of number 1", 1, 2**32),
       ("another extent of the same number", 10, 10),
       ("an extent of the last number there is after one of number 10", 10, 2**32 - 1))
def events_order(begin, newer, older):
    server = begin.server()
    m = begin.map().on()
    server.say(extent(SIZE * 3, number=newer))
    m.soon(lambda: m.size() == SIZE * 3, "it does not hear of it")
    with server.lock:
        # Number 0 would be taken for none.
        said = bytearray(extent(SIZE * 2, number=older % 2**32 or 1))
        said[20:] = struct.pack("<I", older % 2**32)
        peer = server.control()
        peer.memory[peer.data : peer.data + len(said)] = bytes(said)
        peer.post(WR_SEND, peer.data, len(said))
    time.sleep(1)
    expect("the size", m.size(), SIZE * 3)
    expect("the number of reconnects", m.reconnects(), 0)
    m.works(server)
    server.say(extent(SIZE, number=newer + 1))
    m.soon(lambda: m.size() == SIZE, "it does not hear of what is newer")


@case("order", "numbers up to the last there is, and beyond: none is the end of the news")
def order_wraps(begin):
    server = begin.server()
    m = begin.map().on()
    for blocks, number in enumerate((2**31 - 1, 2**32 - 2, 2**32 - 1, 1, 2), 3):
        server.say(extent(SIZE * blocks, number=number))
        m.soon(lambda size=SIZE * blocks: m.size() == size, f"it does not hear of number {number}")
    expect("the number of reconnects", m.reconnects(), 0)


@case("order", "an older extent on another path, and when the path of the newer one is gone")
def order_paths(begin):
    server = begin.server()
    other = second(begin, server)
    m = begin.map(addresses=[ADDRESS, SECOND], no_path_timeout_ms=-1).on()
    m.soon(lambda: show(m.at + "paths/b/state") == "live", "the second path does not come up")
    server.say(extent(SIZE * 3, number=20))
    m.soon(lambda: m.size() == SIZE * 3, "it does not hear of it")
    other.say(extent(SIZE * 2, number=19))
    time.sleep(0.6)
    expect("the size", m.size(), SIZE * 3)
    # And an admission that is older than what was said.
    with server.lock:
        server.fields["extent_number"] = 18
        server.control().disconnect()
    m.soon(lambda: m.reconnects() == 1, "the path does not come back")
    time.sleep(0.6)
    expect("the size", m.size(), SIZE * 3)
    other.say(extent(SIZE, number=21))
    m.soon(lambda: m.size() == SIZE, "it does not hear of what is newer")
    m.works(server)


def second(begin, server, **fields):
    """The same server at the second address, but for the fields; both have one disk."""
    fields = {"server_id": server.server_id, "export_uuid": server.export_uuid, "instance": server.instance, **fields}
    other = begin.server(server.kind, address=SECOND, **fields)
    other.memory, other.base = server.memory, server.base
    return other


# --- a server that comes back ---------------------------------------------------------------------


def comes_back(m, server, **fields):
    """The server lets go of the map, and is another one when that comes back."""
    with server.lock:
        server.fields.update(fields)
        server.control().disconnect()


@cases("return",
       ("with another instance, of a block export", KIND_BLOCK, {"instance": b"i" * 16}, "works"),
       ("with another instance, of RAM", KIND_RAM, {"instance": b"i" * 16}, "stale"),
       ("with another UUID", KIND_BLOCK, {"export_uuid": b"i" * 16}, "stale"),
       ("with other blocks", KIND_BLOCK, {"logical": 4096, "physical": 4096, "io_min": 4096}, "the block size differs"),
       ("with a smaller largest I/O", KIND_BLOCK, {"max_io": 64 << 10}, "requests are smaller"),
       ("as a block export that is RAM now", KIND_BLOCK, {"kind": KIND_RAM, "slab_shift": 20}, "the kind of the export differs|stale|E[A-Z]+ "),
       ("with less depth", KIND_BLOCK, {"depth": 1, "credit": 1}, "the queues are shorter"),
       ("with a write cache", KIND_BLOCK, {"features": 1}, "write cache"),
       ("as another server", KIND_BLOCK, {"server_id": b"s" * 16}, "server"),
       ("with other hints", KIND_BLOCK, {"io_opt": 16 << 20, "io_min": 1 << 20}, "works"),
       ("with less inline data", KIND_BLOCK, {"inline": 0}, "works"),
       ("with less credit", KIND_BLOCK, {"credit": 1}, "works"),
       ("with another session and another reservation key", KIND_BLOCK, {"session": 2**64 - 1, "key": 2**64 - 1}, "works|evicted|E[A-Z]+ "),
       ("with larger slabs", KIND_RAM, {"slab_shift": 22}, "works"))
def returns(begin, kind, fields, pattern):
    server = begin.server(kind)
    m = begin.map(no_path_timeout_ms=2000).on()
    m.works(server)
    comes_back(m, server, **fields)
    if pattern == "works":
        m.works(server)
        expect("the number of reconnects", m.reconnects(), 1)
    elif "works" in pattern and m.read(0).end("a read", PATIENT) is None:
        m.works(server)
    else:
        m.soon(lambda: re.search(pattern, m.state() + m.last_error() + show(m.at + "paths/a/last_error")), f"no {pattern!r}")


# o7. The disk knows only slabs of the size that they had when it was made.
@case("slabsize", "with smaller slabs: the path does not fit, and no I/O fails with a server that is there")
def returns_smaller(begin):
    server = begin.server(KIND_RAM)
    m = begin.map(no_path_timeout_ms=-1).on()
    m.works(server)
    comes_back(m, server, slab_shift=16)
    m.says("the slabs are smaller")
    read = m.read((1 << 20) - LARGE // 2, LARGE)
    time.sleep(2)
    if not read.is_alive():
        raise Failed(f"a read across slabs ends: {read.error}")
    # And when they are as they were, it goes on.
    with server.lock:
        server.fields.clear()
    expect("the read", read.end("a read", PATIENT), None)
    m.works(server)


# --- a server that is slow ------------------------------------------------------------------------


SLOW = 0.7


# p. Each step has its time, and each answer is progress.
@case("slow", "grants one by one, which take longer than one step may")
def slow_grants(begin):
    server = begin.server(KIND_RAM, on={"grant": lambda *message: time.sleep(SLOW) or with_grant(change=lambda grants: grants[:1])(*message)})
    m = begin.map()
    start = time.monotonic()
    m.on()
    took = time.monotonic() - start
    if took < 5:
        raise Failed(f"enable takes {took:.1f} s only: the case is of no use")
    m.works(server)
    return f"{took:.1f} s"


@case("slow", "grants that end in the midst")
def slow_grants_end(begin):
    asked = []

    def hook(server, peer, message):
        asked.append(message)
        time.sleep(SLOW)
        return len(asked) > 3 or with_grant(change=lambda grants: grants[:1])(server, peer, message)

    start = time.monotonic()
    said = refused(begin, begin.server(KIND_RAM, on={"grant": hook}), "ETIMEDOUT (the server does not answer|no answer)", ENABLE)
    took = time.monotonic() - start
    if len(asked) != 4 or took > 4 * SLOW + 4 + 3 * PATIENCE:
        raise Failed(f"{len(asked)} requests, {took:.1f} s")
    return said


def now_and_then(begin):
    """A server whose grants of 1,024 slabs come one by one, in more than half an hour."""
    asked = []

    def hook(server, peer, message):
        asked.append(message)
        time.sleep(2)
        return with_grant(change=lambda grants: grants[:1])(server, peer, message)

    begin.server(KIND_RAM, on={"grant": hook}, size=1024 << SLAB_SHIFT)
    return asked


# As many as there are could take weeks, with progress in each step.
@case("slow", "grants one by one of very many slabs")
def slow_grants_many(begin):
    now_and_then(begin)
    m = begin.map()
    start = time.monotonic()
    expect("enable", Task(store, m.at + "enable", "1").end("enable", 16 + 5 * PATIENCE), "ETIMEDOUT")
    took = time.monotonic() - start
    if took < 9 or not re.search("slabs too slowly: [0-9]+ of 1024", m.last_error()):
        raise Failed(f"{m.last_error()!r} after {took:.1f} s")
    return f"{m.last_error()} ({took:.1f} s)"


@case("slow", "grants one by one of very many slabs, and force meanwhile")
def slow_grants_force(begin):
    asked = now_and_then(begin)
    m = begin.map()
    enable = Task(store, m.at + "enable", "1")
    m.soon(lambda: asked, "no slab is asked for")
    m.force()
    expect("enable", enable.end("enable", PATIENCE), "ECANCELED")
    expect("the state", m.state(), "disabled")


@case("slow", "grants one by one of very many slabs, and the task is killed meanwhile")
def slow_grants_killed(begin):
    asked = now_and_then(begin)
    m = begin.map()
    with subprocess.Popen(["sh", "-c", 'echo 1 >"$0"', m.at + "enable"]) as enable:
        m.soon(lambda: asked, "no slab is asked for")
        enable.kill()
        try:
            enable.wait(FORCE)
        except subprocess.TimeoutExpired:
            m.force()
            raise Failed("a killed task goes on") from None
    expect("the state", m.state(), "disabled")
    text = m.last_error()
    if not text.startswith("EINTR killed while"):
        raise Failed(f"last_error is {text!r}")
    return text


# A path that comes back has time for each of its connections.
@case("slow", "I/O connections of a path that comes back, which all together take longer than one may")
def slow_connections(begin):
    def hook(server, peer, _):
        if server.armed:
            time.sleep(1.2)
        return False

    server = begin.server(on={"connect_io": hook})
    m = begin.map(queues=4, no_path_timeout_ms=-1, heartbeat_ms=0).on()
    m.works(server)
    server.armed = True
    comes_back(m, server)
    start = time.monotonic()
    m.soon(lambda: m.reconnects() == 1, "it does not come back")
    took = time.monotonic() - start
    if took < 4.5:
        raise Failed(f"it takes {took:.1f} s only: the case is of no use")
    server.armed = False
    m.works(server)
    logins = len(server.logins)
    expect("the number of logins", logins, 2)
    return f"{took:.1f} s"


# --- numbers at their limits ----------------------------------------------------------------------


def alternating(*values):
    """A field of the reply to a login that is another one each time."""
    times = []

    def field(_):
        times.append(1)
        return values[(len(times) - 1) % len(values)]

    return field


# What the server says changes with each login. The map works each time, or ends with a reason.
@cases("numbers",
       ("the server remembers, and does not", "works", {"flags": alternating(0, 0, 1)}),
       ("a lease of 1 ms", "works", {"lease_ms": 1}),
       ("a lease of 1 ms, of a server that forgets", "evicted", {"lease_ms": 1, "flags": 0}),
       ("the longest and the shortest lease", "works", {"lease_ms": alternating(0xFFFFFFFF, 1)}),
       ("numbers of extents that go back", "works", {"extent_number": alternating(9, 5, 1, 0)}),
       ("the last number of an extent, and the first", "works", {"extent_number": alternating(0xFFFFFFFF, 0)}),
       ("a session of the same number each time", "works", {"session": 1}),
       ("the last session there could be, and the first", "works", {"session": alternating(2**64 - 1, 1)}),
       ("more credit, and less", "works", {"credit": alternating(1, 16)}),
       ("more inline data, and none", "works", {"inline": alternating(4096, 0)}),
       ("a smaller and a larger best I/O", "works", {"io_opt": alternating(512, 16 << 20), "io_min": alternating(512, 1 << 20)}),
       ("reservation keys that alternate", "evicted", {"key": alternating(7, 8)}),
       ("the last reservation key there could be", "works", {"key": 2**64 - 1}),
       ("a lease that becomes none", "malformed", {"lease_ms": alternating(60000, 0)}),
       ("a server id that becomes nil", "malformed", {"server_id": alternating(b"s" * 16, bytes(16))}))
def numbers(begin, wanted, fields):
    server = begin.server(**fields)
    m = begin.map(no_path_timeout_ms=5000).on()
    for number in range(1, 4):
        m.works(server)
        comes_back(m, server)
        if wanted == "evicted":
            m.soon(lambda: m.state() == "evicted", "it goes on")
            expect("a read", m.read(0).end("a read", PATIENT), "ENOLINK")
            return
        m.soon(lambda: m.reconnects() == number, "it does not come back")
        if wanted == "malformed":
            # The login between was not let in.
            expect("the number of logins", len(server.logins), 1 + 2 * number)
    m.works(server)


@case("numbers", "an export that shrinks with an older number, and what is beyond fails")
def numbers_shrink(begin):
    server = begin.server(extent_number=9)
    m = begin.map(no_path_timeout_ms=-1).on()
    comes_back(m, server, extent_number=3, size=1 << 20)
    m.soon(lambda: m.reconnects() == 1, "it does not come back")
    time.sleep(0.6)
    expect("the size", m.size(), SIZE)
    comes_back(m, server, extent_number=10)
    m.soon(lambda: m.size() == 1 << 20, "it does not hear of what is newer")
    expect("a read", m.read(0).end("a read", PATIENT), None)


@case("numbers", "another server each time that it comes back: the path waits for the first one")
def numbers_server(begin):
    server = begin.server()
    server.fields["server_id"] = alternating(server.server_id, b"s" * 16, b"t" * 16)
    m = begin.map(no_path_timeout_ms=-1).on()
    for number in 1, 2:
        comes_back(m, server)
        m.soon(lambda: m.reconnects() == number, "it does not come back")
        expect("the number of logins", len(server.logins), 1 + 3 * number)
        m.works(server)


# --- two paths ------------------------------------------------------------------------------------


# The second path leads elsewhere. The map works over the first one, and says what is wrong.
@cases("paths",
       ("to another server", {"server_id": b"s" * 16}, "server"),
       ("to another server, with another export", {"server_id": b"s" * 16, "export_uuid": b"e" * 16}, "server"),
       ("to another export", {"export_uuid": b"e" * 16}, "E[A-Z]+ "),
       ("of another reservation key", {"key": 8}, "E[A-Z]+ "),
       ("of a reservation key at the limit", {"key": 2**64 - 1}, "E[A-Z]+ "),
       ("with other blocks", {"logical": 4096, "physical": 4096, "io_min": 4096}, "block size"),
       ("with smaller requests", {"max_io": 64 << 10}, "requests are smaller"),
       ("of no depth", {"depth": 0, "credit": 0}, "malformed"),
       ("of a nil server id", {"server_id": bytes(16)}, "malformed"),
       ("of a server id that changes", {"server_id": alternating(b"s" * 16, b"t" * 16)}, "server"))
def paths(begin, fields, pattern):
    server = begin.server()
    second(begin, server, **fields)
    m = begin.map().on()
    m.add("b", SECOND)
    m.says(pattern)
    for _ in range(3):
        m.works(server)
    expect("the state", m.state(), "live")
    expect("the error of the map", m.last_error(), "")
    return show(m.at + "paths/b/last_error")


@case("paths", "another instance on each path: they take turns, and no I/O is wrong")
def paths_instances(begin):
    server = begin.server()
    other = second(begin, server, instance=b"i" * 16)
    m = begin.map(addresses=[ADDRESS, SECOND], no_path_timeout_ms=-1).on()
    start = time.monotonic()
    reads = 0
    while time.monotonic() < start + 5:
        m.works(server)
        reads += 1
    logins = len(server.logins) + len(other.logins)
    took = time.monotonic() - start
    if logins > 10 + 10 * took:
        raise Failed(f"there are {logins} logins in {took:.1f} s")
    return f"{reads} rounds, {logins} logins in {took:.1f} s"


# --- what comes too late --------------------------------------------------------------------------


@cases("late",
       ("an extent, a pong and a reply after the logout", [extent(), event(PONG), reply(LOGOUT, 1)]),
       ("what is malformed after the logout", [b"", event(78), bytes(4096)]),
       ("the reply to the logout again and again", [reply(LOGOUT, 2)] * 64),
       ("an unknown code for the logout", None),
       ("events before the reply to the logout", "before"))
def late(begin, said):
    def hook(server, peer, message):
        sequence, = struct.unpack_from("<I", message, 4)
        if said is None:
            peer.send(reply(LOGOUT, sequence, code=999, text="too early"))
        elif said == "before":
            for index in range(100):
                peer.send(extent(SIZE * (1 + index % 2)))
            peer.send(reply(LOGOUT, sequence))
        else:
            peer.send(reply(LOGOUT, sequence))
            for message in said:
                peer.send(message)
        return True

    server = begin.server(on={"logout": hook})
    m = begin.map().on()
    m.works(server)
    os.close(m.file)
    m.file = None
    # The disk may still be open for the uevent of it.
    m.soon(lambda: Task(store, m.at + "enable", "0").end("disable", FORCE) != "EBUSY", "it is open")
    expect("enable", show(m.at + "enable"), "0")


# The map is gone, and the server goes on with what it was asked.
@cases("late",
       ("answers to commands of a map that was forced", LARGE, False),
       ("inline answers to commands of a map that was forced", PAGE, False),
       ("RDMA to the memory of a map that was forced", LARGE, True))
def late_answers(begin, length, rdma):
    held = []

    def hook(server, peer, command):
        if server.armed:
            held.append((peer, command))
        return server.armed

    server = begin.server(on={"command": hook})
    m = begin.map().on()
    server.armed = True
    reads = [m.read((2 << 20) + index * length, length) for index in range(4)]
    m.soon(lambda: len(held) == 4, "the commands do not come")
    with server.lock:
        # It does not hear that the map is gone: the locked server does nothing.
        m.force()
        got = []
        for peer, command in held:
            if rdma:
                got.append(peer.move(WR_RDMA_WRITE, command.addr, command.rkey, length, b"!" * length))
            elif length == PAGE:
                peer.send(bytes(server.memory[command.offset : command.offset + length]), WR_SEND_WITH_IMMEDIATE, command.immediate())
            else:
                peer.send(command.response())
    for read in reads:
        if read.end("a read", PATIENT) is None:
            raise Failed("a read succeeds")
    expect("what the server got", [*got], [None] * len(got))


@cases("late",
       ("the data twice", lambda server, peer, c: [answer_inline(server, peer, c) for _ in range(2)]),
       ("the data, then a response", lambda server, peer, c: [answer_inline(server, peer, c), peer.send(c.response(1))]),
       ("the data, then those of the generation to come",
        lambda server, peer, c: [answer_inline(server, peer, c), answer_inline(server, peer, c, generation=c.generation + 1)]))
def late_twice(begin, attack):
    server = begin.server(on={"command": once_armed(lambda server, peer, c: attack(server, peer, c))})
    m = begin.map().on()
    server.armed = True
    read = m.read(3 << 20)
    expect("the read", read.end("a read", PATIENT), None)
    expect("what was read", read.value, server.memory[3 << 20 : (3 << 20) + PAGE])
    m.soon(lambda: m.reconnects() == 1, "the connection goes on")
    m.works(server)


def answer_inline(server, peer, c, **changed):
    peer.send(bytes(server.memory[c.offset : c.offset + c.length]), WR_SEND_WITH_IMMEDIATE, c.immediate(**changed))


# --- silence and ends, in the midst of I/O --------------------------------------------------------


@cases("silence", ("of a command", {}), ("of everything", {"ping": silent, "logout": silent}))
def silence(begin, on):
    server = begin.server(on={"command": lambda server, *_: server.armed, **on})
    m = begin.map(io_timeout_ms=1000, no_path_timeout_ms=3000).on()
    server.armed = True
    read = m.read(3 << 20)
    time.sleep(4 * PATIENCE)
    # Force ends it, if nothing has yet.
    m.force()
    expect("the read ends with an error", read.end("a read", FORCE) in ("EIO", "ENOLINK", "ENODEV"), True)


@cases("silence",
       ("the end with a command", lambda server, peer, c: server.armed and (peer.disconnect() or True)),
       ("the end of the control connection with a command", lambda server, peer, c: server.armed and (server.control().disconnect() or True)))
def ends(begin, hook):
    server = begin.server(on={"command": once_armed(hook)})
    m = begin.map().on()
    server.armed = True
    broken(m, server, m.read(3 << 20), 3 << 20)


# An I/O connection has ended before the client's last message of the connection manager got there:
# then no message says so.
@cases("silence",
       ("the end of an I/O connection without a word, at once", "connect_io", lambda peer: peer.accept()),
       ("the end of an I/O connection without a word, with a command that has got there", "command", lambda _: None))
def ends_silently(begin, name, before):
    def hook(server, peer, _):
        before(peer)
        cm.rdma_destroy_qp(peer.id)
        return True

    server = begin.server(on={name: once_armed(hook)})
    server.armed = name == "connect_io"
    # While commands wait, control connection and heartbeats go on.
    m = begin.map(io_timeout_ms=1000, no_path_timeout_ms=-1).on()
    server.armed = True
    broken(m, server, m.read(3 << 20), 3 << 20)


@case("silence", "of pings: the server is given up on, and I/O goes on with the next connection")
def silence_pings(begin):
    server = begin.server(on={"ping": lambda server, *_: server.armed})
    m = begin.map(heartbeat_ms=500).on()
    server.armed = True
    m.soon(lambda: m.reconnects() >= 1, "it does not notice")
    server.armed = False
    m.works(server)


@case("silence", "of a logout")
def silence_logout(begin):
    server = begin.server(on={"logout": silent})
    m = begin.map().on()
    m.works(server)
    os.close(m.file)
    m.file = None
    # Plainly: it says so, or has ended.
    Task(store, m.at + "enable", "0").end("disable", ENABLE + 5)


@case("silence", "of all connections from now on, while I/O waits")
def silence_connections(begin):
    server = begin.server()
    m = begin.map(no_path_timeout_ms=2000).on()
    m.works(server)
    server.on.update({"connect": silent})
    with server.lock:
        server.control().disconnect()
    # Until the client knows, the I/O connections go on.
    m.soon(lambda: m.state() != "live", "it is live")
    expect("a read", m.read(0).end("a read", PATIENT), "ENOLINK")


# o5. The first read, of the partitions, is never answered.
@cases("first", ("the first read alone is not answered", {}), ("nothing is answered any more", {"ping": silent, "logout": silent}))
def first_read(begin, on):
    begin.server(on={"command": silent, **on})
    m = begin.map(no_path_timeout_ms=-1, io_timeout_ms=1000)
    m.enable()
    return m.last_error()


# o3. The same.
@case("again", "I/O connections that end at once")
def again_at_once(begin):
    begin.server(on={"connect_io": lambda _, peer, __: peer.accept() or peer.disconnect() or True})
    m = begin.map(no_path_timeout_ms=1000)
    m.enable()
    return m.last_error()


# o3. The server lets the client in, and breaks the protocol at once, again and again.
@cases("again",
       ("a response to nothing on each connection", True),
       ("a malformed event on each connection", False))
def again(begin, io):
    def hook(server, peer, command):
        if not server.armed:
            return False
        if io:
            peer.send(bytes(16))
        else:
            server.control().send(event(78))
        return True

    server = begin.server(on={"command": hook})
    m = begin.map(no_path_timeout_ms=3000).on()
    server.armed = True
    read = m.read(3 << 20)
    start = time.monotonic()
    expect("the read", read.end("a read", PATIENT), "ENOLINK")
    took = time.monotonic() - start
    if took > 3 + 5 * PATIENCE:
        raise Failed(f"I/O waits for {took:.1f} s with no_path_timeout_ms=3000")
    logins = len(server.logins)
    if logins > 40:
        raise Failed(f"there are {logins} logins in {took:.1f} s")
    return f"{logins} logins in {took:.1f} s"


# --- ping -----------------------------------------------------------------------------------------


def ping(count=5):
    """What a ping of this host says: the error, last_error, how many round trips it counts, and how long it takes."""
    at = CONFIG.replace("maps", "discover") + "hostile/"
    os.mkdir(at)
    try:
        for name, value in {"addr": ADDRESS, "pings": count, "interval_us": 1000}.items():
            store(at + name, str(value))
        start = time.monotonic()
        error = Task(store, at + "enable", "1").end("ping", 25 * PATIENCE)
        took = time.monotonic() - start
        return error, show(at + "last_error"), len(show(at + "rtt_ns").split()), took
    finally:
        os.rmdir(at)


def answers_with(*said):
    def hook(server, peer, message):
        for one in said:
            peer.send(one(message) if callable(one) else one)
        return True

    return hook


@case("ping", "an honest server")
def ping_honest(begin):
    begin.server()
    expect("the outcome", ping()[:3], (None, "", 5))


@cases("ping",
       ("an answer of no byte", b"", "EPROTO"),
       ("a pong that is too long", event(PONG, b"x"), "EPROTO"),
       ("a pong that says it is longer", event(PONG, length=9), "EPROTO"),
       ("a pong of 4096 bytes", event(PONG, bytes(4088)), "EPROTO"),
       ("an extent", extent(number=1), "EPROTO"),
       ("a fence that is done", event(FENCED, bytes(16)), "EPROTO"),
       ("the ping itself", lambda message: message, "EPROTO"),
       ("a reply that grants it", lambda message: reply(PING, struct.unpack_from("<I", message, 4)[0]), "EPROTO"),
       ("a refusal of something else", lambda message: reply(PING, 0xFFFFFFFF, code=hostile.BUSY), "EPROTO"),
       ("a refusal", lambda message: reply(PING, struct.unpack_from("<I", message, 4)[0], code=hostile.BUSY, text="no\x1b[m\n"), "EBUSY"),
       ("a refusal of what cannot be malformed", lambda message: reply(PING, struct.unpack_from("<I", message, 4)[0], code=hostile.MALFORMED, text="no"), "EPROTO"),
       ("random bytes", lambda message: os.urandom(64), "EPROTO"))
def ping_garbage(begin, said, wanted):
    begin.server(on={"ping": answers_with(said)})
    error, words, trips, _ = ping()
    expect("the outcome", (error, trips), (wanted, 0))
    if not re.fullmatch(wanted + " [ -~]+", words):
        raise Failed(f"last_error is {words!r}")
    return words


@case("ping", "two pongs for each ping")
def ping_twice(begin):
    begin.server(on={"ping": answers_with(event(PONG), event(PONG))})
    error, words, *_ = ping(count=256)
    expect("the outcome", (error, words), ("EPROTO", "EPROTO the server answers what it was not asked"))


@case("ping", "a server that is silent from the third ping on")
def ping_silent(begin):
    server = begin.server()
    server.pings = 0

    def hook(server, peer, message):
        server.pings += 1
        return server.pings > 3

    server.on["ping"] = hook
    error, words, trips, took = ping()
    # The first one does not count.
    expect("the outcome", (error, trips), ("ETIMEDOUT", 2))
    if not 3.5 < took < 6 * PATIENCE:
        raise Failed(f"it took {took:.1f} s")
    return words


@case("ping", "a server that ends the connection with a ping")
def ping_end(begin):
    begin.server(on={"ping": lambda server, peer, _: peer.disconnect() or True})
    expect("the outcome", ping()[:3], ("ENOTCONN", "ENOTCONN the connection was lost", 0))


@case("ping", "a server that does not accept")
def ping_unaccepted(begin):
    begin.server(on={"connect": silent})
    error, words, _, took = ping()
    expect("the outcome", error, "ETIMEDOUT")
    if took > 6 * PATIENCE:
        raise Failed(f"it took {took:.1f} s")
    return words


@case("ping", "a server that is slow enough to keep a task for long")
def ping_slow(begin):
    def hook(server, peer, message):
        time.sleep(3)
        return False

    begin.server(on={"ping": hook})
    error, words, trips, took = ping(count=256)
    expect("the outcome", (error, words), (None, ""))
    if not 1 <= trips <= 6 or took > 20 * PATIENCE:
        raise Failed(f"{trips} round trips in {took:.1f} s")
    return f"{trips} round trips in {took:.1f} s"


def main(address, second_address, wanted):
    global ADDRESS, SECOND
    ADDRESS, SECOND = address, second_address
    failed = told = most = ran = 0
    only = os.environ.get("FARBLK_CASE", "")
    uevents = Uevents()
    for group, words, function, arguments in CASES:
        if group != wanted or only not in words:
            continue
        ran += 1
        start = time.monotonic()
        begin = Begin()
        said = faults = None
        try:
            said = function(begin, *arguments)
        except (Failed, OSError, StopIteration) as error:
            faults = [f"{type(error).__name__} {error}"]
        try:
            begin.end()
        except (Failed, OSError) as error:
            faults = [*(faults or ()), f"at the end: {type(error).__name__} {error}"]
        took = time.monotonic() - start
        count, in_a_second = uevents.since(start)
        told, most = told + count, max(most, in_a_second)
        if in_a_second > UEVENTS_MAX:
            faults = [*(faults or ()), f"{in_a_second} uevents in a second"]
        if faults:
            failed += 1
            print(f"FAILED: {words}: {'; '.join(faults)} ({took:.1f} s)", flush=True)
            if any("at the end" in fault for fault in faults):
                # What is left would be in the way of the next case.
                break
        else:
            print(f"{words}: ok ({took:.1f} s){': ' + str(said) if said else ''}", flush=True)
    print(f"{failed} of the cases failed; {told} uevents, at most {most} in a second", flush=True)
    if not ran:
        print(f"FAILED: there is no such case: {wanted} {only}", flush=True)
    os._exit(failed != 0 or not ran)


if __name__ == "__main__":
    main(*sys.argv[1:])
