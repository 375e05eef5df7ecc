#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A client that does not keep to the protocol: hostile.py SERVER GROUP

Does the cases of a group, one after the other, on connections of its own, and prints a line for each; what the server has to do is what
Documentation/protocol.rst says. The last line is "violations N": by so many the server's counter has to have gone up. Exits with 1 if the
server did something else, with 4 where user space has no RDMA. FARBLK_CASE=WORDS picks the cases named so. Leaves by just dying: what is
open then is the kernel's to close.

Long: most of it is a list of cases, which share the peer at the top; sessions.py uses that, too.

It calls librdmacm and libibverbs through ctypes. What verbs.h has as inline functions are pointers in the device's context.
"""
import ctypes
import glob
import mmap
import os
import resource
import select
import socket
import struct
import sys
import time
from ctypes import POINTER, Structure, byref, c_char, c_int, c_size_t, c_ubyte, c_uint, c_uint16, c_uint32, c_uint64, c_void_p

PATIENCE = float(os.environ.get("FARBLK_PATIENCE", 1))
# Within so many seconds the server has answered, or a connection has ended: that of a client that
# does not receive after 6 more tries.
SOON = 10 * PATIENCE
# Within so many seconds the server gives up a connection on which nothing is acknowledged: it sends
# 6 more times, every 2.1 s.
UNACKNOWLEDGED = 30 * PATIENCE
PORT = 7420


def is_iwarp():
    """Whether the RDMA devices of this host are those of iWARP."""
    for name in glob.glob("/sys/class/infiniband/*/node_type"):
        with open(name, encoding="ascii") as kind:
            if "RNIC" in kind.read():
                return True
    return False


# There are no immediate data, and no one waits for a receive or sends again but TCP. A WRITE has
# completed when TCP has it.
IWARP = is_iwarp()

# --- librdmacm and libibverbs ---------------------------------------------------------------------

PS_TCP, QPT_RC = 0x106, 2
ADDR_RESOLVED, ROUTE_RESOLVED, REJECTED, ESTABLISHED, DISCONNECTED = 0, 2, 8, 9, 10
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMMEDIATE, WR_SEND, WR_SEND_WITH_IMMEDIATE, WR_RDMA_READ, WR_SEND_WITH_INVALIDATE = 0, 1, 2, 3, 4, 9
SIGNALED, WITH_IMMEDIATE = 2, 2
RECEIVED, NUDGE, OPERATION = 128, 127, 126
FLUSHED_ERROR = 5


class Cap(Structure):
    _fields_ = [(n, c_uint32) for n in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")]


class QpInitAttr(Structure):
    _fields_ = [("context", c_void_p), ("send_cq", c_void_p), ("recv_cq", c_void_p), ("srq", c_void_p), ("cap", Cap), ("type", c_int),
                ("sq_sig_all", c_int)]


class Sge(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32)]


class SendWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int), ("opcode", c_int),
                ("flags", c_uint), ("immediate", c_uint32), ("remote_addr", c_uint64), ("rkey", c_uint32), ("rest", c_ubyte * 72)]


class RecvWr(Structure):
    _fields_ = [("wr_id", c_uint64), ("next", c_void_p), ("sg_list", POINTER(Sge)), ("num_sge", c_int)]


class Wc(Structure):
    _fields_ = [("wr_id", c_uint64), ("status", c_int), ("opcode", c_int), ("vendor_err", c_uint32), ("byte_len", c_uint32),
                ("immediate", c_ubyte * 4), ("qp_num", c_uint32), ("src_qp", c_uint32), ("flags", c_uint), ("rest", c_uint32 * 2)]


class Mr(Structure):
    _fields_ = [("context", c_void_p), ("pd", c_void_p), ("addr", c_void_p), ("length", c_size_t), ("handle", c_uint32),
                ("lkey", c_uint32), ("rkey", c_uint32)]


class Context(Structure):
    _fields_ = [("device", c_void_p), ("ops", c_void_p * 32)]

    POLL_CQ, POST_SEND, POST_RECV = 11, 25, 26

    def operation(self, number, *types):
        return ctypes.CFUNCTYPE(c_int, *types)(self.ops[number])


class CmId(Structure):
    _fields_ = [("verbs", POINTER(Context)), ("channel", c_void_p), ("context", c_void_p), ("qp", c_void_p)]


class ConnParam(Structure):
    _fields_ = [("private_data", c_void_p), ("private_data_len", c_ubyte), ("responder_resources", c_ubyte),
                ("initiator_depth", c_ubyte), ("flow_control", c_ubyte), ("retry_count", c_ubyte), ("rnr_retry_count", c_ubyte),
                ("srq", c_ubyte), ("qp_num", c_uint32)]


class CmEvent(Structure):
    _fields_ = [("id", c_void_p), ("listen_id", c_void_p), ("type", c_int), ("status", c_int), ("param", ConnParam)]


def checked(result, function, _):
    if bool(result) == (function.restype is c_int):
        error = ctypes.get_errno()
        raise OSError(error, f"{function.__name__}: {os.strerror(error)}")
    return result


def library(name, **functions):
    """The library with these functions: FUNCTION=(RESULT, ARGUMENT...). They raise an error where they give a number but 0, or no pointer."""
    lib = ctypes.CDLL(name, use_errno=True)
    for function, (result, *arguments) in functions.items():
        entry = getattr(lib, function)
        entry.restype, entry.argtypes = result, arguments
        if result:
            entry.errcheck = checked
    return lib


try:
    ID = POINTER(CmId)
    cm = library(
        "librdmacm.so.1", rdma_create_event_channel=(c_void_p,), rdma_destroy_event_channel=(None, c_void_p),
        rdma_create_id=(c_int, c_void_p, POINTER(ID), c_void_p, c_int), rdma_destroy_id=(c_int, ID),
        rdma_resolve_addr=(c_int, ID, c_void_p, c_void_p, c_int), rdma_resolve_route=(c_int, ID, c_int),
        rdma_create_qp=(c_int, ID, c_void_p, POINTER(QpInitAttr)), rdma_destroy_qp=(None, ID),
        rdma_connect=(c_int, ID, POINTER(ConnParam)), rdma_disconnect=(c_int, ID),
        rdma_get_cm_event=(c_int, c_void_p, POINTER(POINTER(CmEvent))), rdma_ack_cm_event=(c_int, POINTER(CmEvent)))
    verbs = library(
        "libibverbs.so.1", ibv_alloc_pd=(c_void_p, POINTER(Context)), ibv_dealloc_pd=(c_int, c_void_p),
        ibv_create_cq=(c_void_p, POINTER(Context), c_int, c_void_p, c_void_p, c_int), ibv_destroy_cq=(c_int, c_void_p),
        ibv_reg_mr=(POINTER(Mr), c_void_p, c_void_p, c_size_t, c_int), ibv_dereg_mr=(c_int, POINTER(Mr)))
except OSError as error:
    print(error)
    sys.exit(4)

# --- connections ----------------------------------------------------------------------------------


class Failed(Exception):
    """The server did something else than it should."""


class Ended(Exception):
    """The server has ended the connection."""


class Refused(Exception):
    """The server did not take the connection, or the login; with its code."""


class Again(Exception):
    """The server wants the connection to come again, with this cookie."""


def expect(what, got, wanted):
    if got != wanted:
        raise Failed(f"{what} is {got}, not {wanted}")


class Connection:
    """A connection. One region of memory has, in this order, what is sent, what is received, and data that the server may reach."""

    SENDS, SLOTS, DATA = 256 << 10, 64, 1 << 20
    alive = []

    def __init__(self, private, receives=16, room=4096, reads=8, retries=6, rnr_retries=6):
        """Keeps `receives` receives of `room` bytes posted; lets the server have `reads` RDMA READs under way, and try again so often.

        `private` are the private data, or makes them of the connection when it has a queue pair.
        """
        cookie = None
        while True:
            try:
                return self.open(private if cookie is None else private[:-16] + cookie, receives, room, reads, retries, rnr_retries)
            except Again as again:
                self.close()
                if cookie:
                    time.sleep(0.05)
                cookie, = again.args

    def open(self, private, receives, room, reads, retries, rnr_retries):
        self.pd = self.own_pd = self.cq = self.mr = None
        self.ended, self.inbox, self.sent, self.at = False, [], [], 0
        self.channel = cm.rdma_create_event_channel()
        self.id = ID()
        cm.rdma_create_id(self.channel, byref(self.id), None, PS_TCP)
        Connection.alive.append(self)
        address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", PORT, socket.inet_aton(SERVER))
        cm.rdma_resolve_addr(self.id, None, ctypes.create_string_buffer(address), 2000)
        self.event(ADDR_RESOLVED)
        cm.rdma_resolve_route(self.id, 2000)
        self.event(ROUTE_RESOLVED)
        self.make(receives, room)
        self.private = private = private(self) if callable(private) else private
        param = ConnParam(ctypes.cast(ctypes.c_char_p(private), c_void_p), len(private), reads, 8, 0, retries, rnr_retries)
        cm.rdma_connect(self.id, byref(param))
        reply = self.event(ESTABLISHED)
        self.reply = reply[:24]
        newest, = struct.unpack_from("<H", private, 6)
        expect("the reply to the connection", struct.unpack_from("<4sH", reply), (MAGIC, min(newest, VERSION)))

    def make(self, receives, room):
        """Makes what is on the device, and posts the receives."""
        device = self.id.contents.verbs
        self.poll_cq = device.contents.operation(Context.POLL_CQ, c_void_p, c_int, POINTER(Wc))
        self.post_send = device.contents.operation(Context.POST_SEND, c_void_p, POINTER(SendWr), POINTER(c_void_p))
        self.post_recv = device.contents.operation(Context.POST_RECV, c_void_p, POINTER(RecvWr), POINTER(c_void_p))
        self.room, self.data = room, self.SENDS + self.SLOTS * room
        self.memory = mmap.mmap(-1, self.data + self.DATA)
        self.base = ctypes.addressof(c_char.from_buffer(self.memory))
        self.pd = self.domain(device)
        self.cq = verbs.ibv_create_cq(device, 512, None, None, 0)
        self.mr = self.register()
        attr = QpInitAttr(None, self.cq, self.cq, None, Cap(256, self.SLOTS, 1, 1, 0), QPT_RC, 1)
        cm.rdma_create_qp(self.id, self.pd, byref(attr))
        for slot in range(receives):
            self.receive_into(slot)

    def domain(self, device):
        """The protection domain: one of its own, which goes with the connection."""
        self.own_pd = verbs.ibv_alloc_pd(device)
        return self.own_pd

    def register(self):
        return verbs.ibv_reg_mr(self.pd, self.base, len(self.memory), LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ)

    def close(self):
        """Disconnects and lets go of everything."""
        Connection.alive.remove(self)
        if self.id.contents.qp:
            self.disconnect()
            cm.rdma_destroy_qp(self.id)
        if self.mr:
            verbs.ibv_dereg_mr(self.mr)
        if self.cq:
            verbs.ibv_destroy_cq(self.cq)
        if self.own_pd:
            verbs.ibv_dealloc_pd(self.own_pd)
        cm.rdma_destroy_id(self.id)
        cm.rdma_destroy_event_channel(self.channel)

    def disconnect(self):
        try:
            cm.rdma_disconnect(self.id)
        except OSError:
            # It is not connected.
            pass

    def event(self, wanted, seconds=SOON):
        """The private data of the next event, which has to be `wanted`; None if there is none, and it was not waited for."""
        ready = select.poll()
        ready.register(c_int.from_address(self.channel).value, select.POLLIN)
        if not ready.poll(seconds * 1000):
            if seconds:
                raise Failed(f"event {wanted} of the connection manager does not come")
            return None
        event = POINTER(CmEvent)()
        cm.rdma_get_cm_event(self.channel, byref(event))
        kind, status, param = event.contents.type, event.contents.status, event.contents.param
        private = ctypes.string_at(param.private_data, param.private_data_len) if param.private_data else b""
        self.peer_qp = param.qp_num if kind == ESTABLISHED else 0
        cm.rdma_ack_cm_event(event)
        if kind == REJECTED and wanted == DISCONNECTED:
            # The server had not heard yet that it is connected.
            return private
        if kind == REJECTED:
            magic, _, _, code = struct.unpack_from("<4sHHH", private.ljust(10))
            if magic != MAGIC:
                raise Failed(f"the connection manager rejects it ({status})")
            if code == AGAIN:
                raise Again(private[112:128])
            raise Refused(code)
        if kind != wanted:
            raise Failed(f"the connection manager says {kind} ({status}), not {wanted}")
        return private

    def sge(self, offset, length):
        return ctypes.pointer(Sge(self.base + offset, length, self.mr.contents.lkey))

    def receive_into(self, slot):
        wr = RecvWr(RECEIVED + slot, None, self.sge(self.SENDS + slot * self.room, self.room), 1)
        self.post_recv(self.id.contents.qp, byref(wr), byref(c_void_p()))

    def post(self, opcode, offset, length, addr=0, rkey=0, immediate=0, number=0):
        wr = SendWr(number, None, self.sge(offset, length), 1, opcode, SIGNALED, immediate, addr, rkey)
        return self.post_send(self.id.contents.qp, byref(wr), byref(c_void_p()))

    def send(self, message):
        """Sends a message, and does not wait."""
        if self.at + len(message) > self.SENDS:
            self.at = 0
        self.memory[self.at : self.at + len(message)] = message
        self.post(WR_SEND, self.at, len(message))
        self.at += len(message)

    def rdma(self, opcode, addr, rkey, length=4096):
        """Reads or writes the server's memory; the status, 0 if it went well."""
        # The READ behind a WRITE fails with the connection, if the WRITE was refused.
        opcodes = [opcode, WR_RDMA_READ] if IWARP and opcode == WR_RDMA_WRITE else [opcode]
        self.operations = []
        for each in opcodes:
            if self.post(each, self.data, length, addr, rkey, number=OPERATION):
                raise Failed("a work request is not taken")
        # What is posted to a queue pair of siw that has failed never completes.
        self.until(lambda: len(self.operations) == len(opcodes) or (IWARP and self.ended), "a work request does not complete")
        return self.operations.pop() if len(self.operations) == len(opcodes) else FLUSHED_ERROR

    def look(self, repost=True):
        """Takes in what has happened."""
        self.ended = self.ended or self.event(DISCONNECTED, 0) is not None
        wc = Wc()
        while self.poll_cq(self.cq, 1, byref(wc)) > 0:
            slot = wc.wr_id - RECEIVED
            if wc.wr_id == NUDGE:
                continue
            if wc.wr_id == OPERATION:
                # The answer to a message may be there before the message has completed.
                self.operations.append(wc.status)
            elif slot < 0:
                self.sent.append(wc.status)
            elif wc.status == 0:
                at = self.SENDS + slot * self.room
                immediate = bytes(wc.immediate) if wc.flags & WITH_IMMEDIATE else None
                self.inbox.append((self.memory[at : at + wc.byte_len], immediate))
                if repost:
                    self.receive_into(slot)

    # When the last answer got here, and whether there is a receive for the next one.
    taken, ready = 0.0, False

    def take_late(self, seconds):
        """Takes in what has happened, and receives the next answer so many seconds after the last one, or up to 0.66 s later."""
        before = len(self.inbox)
        self.look(False)
        if len(self.inbox) > before:
            self.taken, self.ready = time.monotonic(), False
        if not self.ready and not self.ended and time.monotonic() >= self.taken + seconds:
            self.receive_into(0)
            self.ready = True

    def until(self, condition, why, repost=True, seconds=SOON):
        end = time.monotonic() + seconds
        nudge = time.monotonic() + 0.3
        while True:
            self.look(repost)
            if condition():
                return
            if time.monotonic() > end:
                raise Failed(why)
            # siw may not notice the first message until something else comes, see quirks.rs.
            # This is no message.
            if IWARP and time.monotonic() > nudge:
                self.post(WR_RDMA_WRITE, 0, 0, number=NUDGE)
                nudge += 0.3
            time.sleep(0.002)

    def receive(self):
        """The next message, and its immediate data or None."""
        self.until(lambda: self.inbox or self.ended, "there is no answer")
        if not self.inbox:
            raise Ended()
        return self.inbox.pop(0)

    def must_end(self, repost=True, seconds=SOON):
        self.until(lambda: self.ended, "the connection goes on", repost, seconds)

    def stale_key(self):
        """An rkey that was good until now."""
        mr = self.register()
        rkey = mr.contents.rkey
        verbs.ibv_dereg_mr(mr)
        return rkey

    def remote(self, **changed):
        """Memory that the server may read and write."""
        return {"addr": self.base + self.data, "rkey": self.mr.contents.rkey, **changed}


# --- the protocol ---------------------------------------------------------------------------------

MAGIC, OLDEST, VERSION = b"FARB", 8, 8
CONTROL, IO = 0, 1
# Kinds 8 and 11, here QUERY and FATE, mean nothing.
LOGIN, GRANT, LIST, LOGOUT, EXTENT, PING, FENCE, QUERY, PONG, FENCED, FATE, FLUSHED, CHALLENGE, REPLY = *range(1, 14), 0x8000
REMOTE_INVALIDATE = 1
NO_VERSION, MALFORMED, NO_SUCH_EXPORT, EXPORT_DISABLED, NOT_ADMITTED, NO_WRITES, BUSY, NO_MEMORY = range(1, 9)
BAD_SESSION, BAD_QUEUE, BAD_STATE = 9, 10, 13
EVICTED, SUPERSEDED, AUTH_REQUIRED, AUTH_FAILED, AGAIN, PROTECTION = 14, 15, 16, 17, 18, 19
READ, WRITE, FLUSH, DISCARD, ZEROES, ERASE, RESERVE, REPORT = 1, 2, 3, 4, 5, 6, 7, 8
FUA, INLINE, NO_UNMAP, PRESSED, ATOMIC = 1, 2, 4, 8, 16
OK, NOT_SUPPORTED, INVALID, OUT_OF_RANGE, READ_ONLY, NO_SPACE = 0, 2, 3, 4, 5, 6
RO, RW = 0, 1
INLINE_MAX = 4096
# Random for each life of a client.
BOOT = int.from_bytes(os.urandom(8), "little") | 1
# Where in the export it writes: before that is what others use.
MINE = 24 << 20


def request(kind=CONTROL, queue=0, session=0, magic=MAGIC, oldest=VERSION, newest=VERSION, epoch=1, ticket=bytes(16)):
    """The private data of a connection request."""
    return struct.pack("<4sHHBxH4xQQ16s", magic, oldest, newest, kind, queue, session, epoch, ticket)


def message(kind, body=b"", length=None):
    return struct.pack("<HHI", kind, 8 + len(body) if length is None else length, 7) + body


def login(export=b"e", host_id=b"h" * 16, host=b"hostile", map_id=None, access=RW, queues=2, depth=16, inline=INLINE_MAX, path=0, epoch=1,
          boot=BOOT, incarnation=1, resume=0, timeout_ms=0, heartbeat_ms=0, protection=0,
          features=REMOTE_INVALIDATE):
    """A login, of another map than all before unless told which."""
    map_id = map_id or os.urandom(16)
    return message(LOGIN, struct.pack("<16s64s16sQ64sBBHHBBIIQQQI4x", host_id, host, map_id, epoch, export, access, path, queues, depth, protection,
                                      features, inline, heartbeat_ms, boot, incarnation, resume, timeout_ms))


def exports(first=0):
    return message(LIST, struct.pack("<16s64sI4x", b"h" * 16, b"hostile", first))


def command(op, tag=0, flags=0, length=0, offset=MINE, rkey=0, addr=0, generation=5, data=b""):
    return struct.pack("<BBHIIIQQ", op, flags, tag, generation, length, rkey, offset, addr) + data


def flush(**fields):
    return command(FLUSH, **{"offset": 0, **fields})


def inline_read(length=4096, **fields):
    return command(READ, **{"flags": INLINE, **fields}, length=length)


def inline_write(data, **fields):
    return command(WRITE, **{"flags": INLINE, "length": len(data), **fields}, data=data)


class Session:
    """A control connection, logged in to an export."""

    def __init__(self, export=b"e", **wanted):
        self.control, self.epoch = Connection(request()), wanted.get("epoch", 1)
        code, reply = self.ask(login(export, **wanted))
        if code:
            raise Refused(code)
        self.id, = struct.unpack_from("<Q", reply, 112)
        self.size, = struct.unpack_from("<Q", reply, 152)
        self.slab = 1 << reply[162]
        self.queues, self.depth, self.inline, self.block = struct.unpack_from("<HHII", reply, 164)
        self.max_io, self.max_discard, _, self.max_zeroes, self.credit = struct.unpack_from("<IIIIH", reply, 188)
        self.flags, self.key, self.server, self.lease_ms = struct.unpack_from("<HQ16sI", reply, 206)
        self.atomic_max, self.atomic_min, _, _, self.max_erase, _ = struct.unpack_from("<6I", reply, 240)

    def ask(self, asked):
        return ask(self.control, asked)

    def io(self, queue=0, **options):
        io = Connection(request(IO, queue, self.id, epoch=self.epoch), **options)
        io.credit = self.credit
        return io

    def busy(self, queue=0, **options):
        """A connection of a client that has asked for all the credit that it can have."""
        io, grown = self.io(queue, **options), time.monotonic()
        # When the server's memory is short, it does not grow as far.
        while io.credit < self.depth - 1 and time.monotonic() < grown + PATIENCE:
            # This takes no receive of those that it is to have.
            io.receive_into(io.SLOTS - 1)
            io.send(flush(flags=PRESSED))
            io.until(lambda: io.inbox or io.ended, "there is no answer", False)
            if not io.inbox:
                raise Ended()
            credit = struct.unpack_from("<HHIH", io.inbox.pop(0)[0])[3]
            if credit > io.credit:
                io.credit, grown = credit, time.monotonic()
        return io

    def grants(self):
        """Address, length and rkey of each slab."""
        code, reply = self.ask(message(GRANT, struct.pack("<II", 0, -(-self.size // self.slab))))
        expect("the status of the grants", code, OK)
        return list(struct.iter_unpack("<QII", reply[120:]))


def ask(control, asked):
    """The status and the whole of the reply."""
    control.send(asked)
    reply, _ = control.receive()
    kind, length, sequence, code = struct.unpack_from("<HHIH", reply)
    expect("kind and sequence of the reply", (kind, sequence), (struct.unpack_from("<H", asked)[0] | REPLY, 7))
    expect("the length of the reply", length, len(reply) if code == OK else 112)
    return code, reply


def status_of(io, asked):
    """Sends a command; the status of its response."""
    io.send(asked)
    response, immediate = io.receive()
    expect("the length of the response", (len(response), immediate), (16, None))
    status, tag, generation, credit, rest = struct.unpack("<HHIH6s", response)
    expect("tag and generation", (tag, generation), struct.unpack_from("<HI", asked, 2))
    expect("the reserved bytes", rest, bytes(6))
    if not credit:
        raise Failed("the response gives no credit")
    return status


def read(io, length, tag=1, **fields):
    """What a read gives: the message that is the answer, or, without immediate data, what is in the client's memory."""
    if IWARP:
        # A region of its own, as the answer takes its key away.
        mr = io.register()
        asked = command(READ, tag=tag, length=length, rkey=mr.contents.rkey, addr=io.base + io.data, **fields)
        expect("the status of a read", status_of(io, asked), OK)
        verbs.ibv_dereg_mr(mr)
        return io.memory[io.data : io.data + length]
    io.send(inline_read(length, tag=tag, generation=0x12345678, **fields))
    back, immediate = io.receive()
    if immediate is None:
        raise Failed(f"a read is answered with {back.hex()}")
    number, = struct.unpack(">I", immediate)
    expect("tag and generation of a read", (number >> 22, number & 0xFFF), (tag, 0x678))
    return back


def small_read(io, **fields):
    """A read whose answer needs no memory of the client, where there is such a thing."""
    return command(READ, length=4096, **io.remote(), **fields) if IWARP else inline_read(**fields)


def works(io, tag=1):
    """What is written is read back: the connection is as good as any."""
    data = os.urandom(INLINE_MAX)
    expect("the status of a write", status_of(io, inline_write(data, tag=tag)), OK)
    if read(io, len(data), tag) != data:
        raise Failed("what is read is not what was written")


# --- cases ----------------------------------------------------------------------------------------

# (group, words, by how much the server's counter goes up, function, arguments)
CASES = []


def case(group, words, violations=0):
    """A case of a group: the function below it, which returns if the server does what it should.

    What it returns is the number of violations, if that is another one.
    """

    def add(function):
        CASES.append((group, words, violations, function, ()))
        return function

    return add


def cases(group, violations, *table):
    """A case for each (words, argument...) of the table."""

    def add(function):
        CASES.extend((group, words, violations, function, arguments) for words, *arguments in table)
        return function

    return add


def refused(code, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Refused as refusal:
        expect("the refusal", refusal.args[0], code)
    else:
        raise Failed("it is not refused")


# The private data are padded with zeroes to 56 bytes on the way.
@cases("connect", 0,
       ("nothing", b"", MALFORMED),
       ("half of the magic", b"FA", MALFORMED),
       ("no newest version", request()[:6], MALFORMED),
       ("another magic", request(magic=b"FARC"), MALFORMED),
       ("random bytes", os.urandom(56), MALFORMED),
       ("only an older version", request(oldest=1, newest=1), NO_VERSION),
       ("only newer versions", request(oldest=VERSION + 1, newest=0xFFFF), NO_VERSION),
       ("another version, and behind it what this one does not know", request(oldest=0, newest=1, kind=9), NO_VERSION),
       ("versions in the wrong order", request(oldest=3, newest=1), MALFORMED),
       ("an unknown kind", request(2), MALFORMED),
       ("a control connection of a session", request(CONTROL, 0, 1), MALFORMED),
       ("a control connection with a queue", request(CONTROL, 1, 0), MALFORMED),
       ("a queue of no session", request(IO, 0, 0), MALFORMED),
       ("a queue of a session that is not there", request(IO, 0, 0xDEADBEEF), BAD_SESSION))
def connect_refused(private, code):
    refused(code, Connection, private)


# The server's queue pair would go by it.
@cases("connect", 0, ("messages that are sent again for ever", {"retries": 7}), ("no receives, which is waited for for ever", {"rnr_retries": 7}))
def connect_for_ever(options):
    refused(MALFORMED, Connection, request(), **options)
    session = Session()
    refused(MALFORMED, session.io, **options)
    works(session.io())


@case("connect", "more than there is to say, as if padded")
def connect_long():
    control = Connection(request() + os.urandom(56 - 48))
    expect("the status of a list", ask(control, exports())[0], OK)


@cases("connect", 0, ("a queue twice", 0), ("a queue beyond those granted", 2), ("the last queue there could be", 0xFFFF))
def connect_queue(queue):
    session = Session()
    expect("the queues granted", session.queues, 2)
    first = session.io()
    refused(BAD_QUEUE, session.io, queue)
    works(first)
    works(session.io(1))


@case("connect", "a queue after the logout")
def connect_after_logout():
    session = Session()
    io = session.io()
    works(io)
    expect("the status of the logout", session.ask(message(LOGOUT))[0], OK)
    io.must_end()
    # The session ends once the answer has got there.
    refused(BAD_SESSION, session.io)


@case("connect", "a queue of a session that is over")
def connect_after_end():
    session = Session()
    session.control.close()
    end = time.monotonic() + SOON
    while True:
        # It is over when the server has noticed.
        try:
            refused(BAD_SESSION, session.io)
            return
        except Failed:
            if time.monotonic() > end:
                raise


# Said before a login, and after one.
@cases("control", 2,
       ("a message of no byte", b""),
       ("a message shorter than a header", b"\x01\x00\x08"),
       ("a message shorter than it says", message(LOGOUT, length=9)),
       ("a message longer than it says", message(LIST, bytes(88), length=8)))
def control_malformed(bytes_sent):
    for control in Connection(request()), Session().control:
        control.send(bytes_sent)
        control.must_end()


# With room for a tag behind it, and without.
@case("control", "messages longer than there may be", 1)
def control_long():
    for size in 4080 + 1, 4096 + 1:
        control = Connection(request())
        control.send(message(LIST, bytes(size - 8)))
        control.must_end()


@cases("control", 0,
       ("an unknown request", message(77), MALFORMED),
       ("a reply", message(LIST | REPLY, bytes(120)), MALFORMED),
       ("an event", message(EXTENT, bytes(16)), MALFORMED),
       ("the answer to a ping", message(PONG), MALFORMED),
       ("a fence of no path", message(FENCE, struct.pack("<QB7x", 1, 8)), MALFORMED),
       ("a fence that is too short", message(FENCE, bytes(15)), MALFORMED),
       ("a kind that is not used", message(QUERY, bytes(8)), MALFORMED),
       ("a fence without a login", message(FENCE, struct.pack("<QB7x", 1, 0)), BAD_STATE),
       ("a login that is too short", message(LOGIN, login()[8:-1]), MALFORMED),
       ("a login that is too long", message(LOGIN, login()[8:] + b"x"), MALFORMED),
       ("a list that is too long", message(LIST, bytes(4072)), MALFORMED),
       ("a logout with something in it", message(LOGOUT, b"x"), MALFORMED),
       ("grants without a login", message(GRANT, struct.pack("<II", 0, 1)), BAD_STATE),
       ("a logout without a login", message(LOGOUT), BAD_STATE),
       ("a login of nobody", login(host_id=bytes(16)), MALFORMED),
       ("a login of no map", login(map_id=bytes(16)), MALFORMED),
       ("a login of a host without a name", login(host=b""), MALFORMED),
       ("a login of a host whose name has no end", login(host=b"x" * 64), MALFORMED),
       ("a login of a host with a slash", login(host=b"../x"), MALFORMED),
       ("a login to a name with something behind it", login(b"e\0e"), MALFORMED),
       ("a login with unknown access", login(access=2), MALFORMED),
       ("a login on a path that there cannot be", login(path=8), MALFORMED),
       ("a login without an epoch", login(epoch=0), MALFORMED),
       ("a login without a boot", login(boot=0), MALFORMED),
       ("a login without an incarnation", login(incarnation=0), MALFORMED),
       ("a login for no queues", login(queues=0), MALFORMED),
       ("a login for no depth", login(depth=0), MALFORMED),
       ("a login for too much depth", login(depth=1025), MALFORMED),
       ("a login for too much inline data", login(inline=16385), MALFORMED),
       ("a login with unknown protection", login(protection=3), MALFORMED),
       ("a login with an unknown feature", login(features=2), MALFORMED),
       ("a login with all features there could be", login(features=255), MALFORMED),
       ("a login with protection that the export does not have", login(protection=1), PROTECTION),
       ("a login with protection of a host that is not admitted", login(b"host", host=b"other", protection=1), NOT_ADMITTED),
       ("a login to an export that is not there", login(b"nothing"), NO_SUCH_EXPORT),
       ("a login to write where nobody may", login(b"ro"), NO_WRITES),
       ("a login to write where this host may not", login(b"host"), NO_WRITES),
       ("a login of a host that is not admitted", login(b"host", host=b"other"), NOT_ADMITTED))
def control_refused(asked, code):
    control = Connection(request())
    expect("the status", ask(control, asked)[0], code)
    # It may try again.
    expect("the status of a login", ask(control, login())[0], OK)


@case("control", "a second login")
def control_second_login():
    session = Session()
    io = session.io()
    expect("the status of the second login", session.ask(login())[0], BAD_STATE)
    expect("the status of a login elsewhere", session.ask(login(b"ro", access=RO))[0], BAD_STATE)
    works(io)


@case("control", "grants of a block export")
def control_grants():
    session = Session()
    expect("the status of the grants", session.ask(message(GRANT, struct.pack("<II", 0, 1)))[0], BAD_STATE)


@case("control", "no request at all; replies that are not received")
def control_silent():
    silent, flooding = Connection(request()), Connection(request(), receives=0)
    for _ in range(100):
        flooding.send(exports())
    flooding.must_end()
    silent.must_end()


@case("control", "silence of who is not logged in")
def control_idle():
    asked = {"a ping": message(PING), "a list": exports(), "a login that is refused": login(b"nothing")}
    controls = {words: Connection(request()) for words in asked}
    for words, control in controls.items():
        control.send(asked[words])
        control.receive()
    session, idle = Session(), Session()
    expect("the status of the logout", session.ask(message(LOGOUT))[0], OK)
    for words, control in {**controls, "a logout": session.control}.items():
        # Six or seven looks, one a second at best.
        control.until(lambda: control.ended, f"the connection goes on after {words}", seconds=2 * SOON)
    works(idle.io())


@case("stranger", "pings with something behind them, and pings whose answers nobody takes")
def stranger_contents():
    control = Connection(request())
    for size in 1, 8, 4072:
        expect(f"the status of a ping of {size} more bytes", ask(control, message(PING, bytes(size)))[0], MALFORMED)
    flooding = Connection(request(), receives=0)
    for _ in range(100):
        flooding.send(message(PING))
    flooding.must_end()
    short = Connection(request())
    short.send(message(PING, bytes(8), length=4080))
    short.must_end()
    return 1


@case("stranger", "more messages than may be sent without a login", 1)
def stranger_flood():
    control = Connection(request())
    start = time.monotonic()
    try:
        # As many at a time as the server has receives for.
        for sent in range(128):
            for _ in range(4):
                control.send(message(PING))
            for _ in range(4):
                expect(f"an answer after {4 * sent} pings", struct.unpack_from("<HHI", control.receive()[0]), (PONG, 8, 0))
    except Ended:
        # On a slow machine it has stayed for too long before.
        if time.monotonic() - start < 8:
            raise
        print("too slow for that many", flush=True)
        return 0
    control.send(message(PING))
    control.must_end()
    return 1


@case("stranger", "pings, for longer than one may stay without a login")
def stranger_stay():
    session, control = Session(), Connection(request())
    start = time.monotonic()
    while not control.ended and time.monotonic() < start + 30 * PATIENCE:
        control.send(message(PING))
        session.control.send(message(PING))
        control.until(lambda: control.ended or control.inbox, "neither an answer nor an end", seconds=2 * SOON)
        control.inbox.clear()
        session.control.until(lambda: session.control.inbox, "no answer to who is logged in")
        session.control.inbox.clear()
        time.sleep(0.5)
    took = time.monotonic() - start
    if not control.ended or took < 8:
        raise Failed(f"the connection ends after {took:.1f} s: {control.ended}")
    works(session.io())


@case("stranger", "logins that are refused to who is admitted: as many connections as an address may have")
def stranger_refused():
    session = Session(map_id=b"m" * 16, epoch=9)
    controls = []
    for _ in range(40):
        controls.append(Connection(request()))
        expect("the status of an older login", ask(controls[-1], login(map_id=b"m" * 16, epoch=8))[0], SUPERSEDED)
    deadline = time.monotonic() + SOON
    while True:
        for control in controls:
            control.look()
        left = sum(not control.ended for control in controls)
        if left <= 16:
            break
        if time.monotonic() > deadline:
            raise Failed(f"{left} connections go on")
    works(session.io())


class Unconfirmed:
    """A connection request whose answer nobody looks at: if the server takes it, it is half-open."""

    def __init__(self):
        self.channel, self.id = cm.rdma_create_event_channel(), ID()
        cm.rdma_create_id(self.channel, byref(self.id), None, PS_TCP)
        address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", PORT, socket.inet_aton(SERVER))
        cm.rdma_resolve_addr(self.id, None, ctypes.create_string_buffer(address), 2000)
        Connection.event(self, ADDR_RESOLVED)
        cm.rdma_resolve_route(self.id, 2000)
        Connection.event(self, ROUTE_RESOLVED)
        private = request()
        param = ConnParam(ctypes.cast(ctypes.c_char_p(private), c_void_p), len(private), 8, 8, 0, 6, 6, 0, 4711)
        cm.rdma_connect(self.id, byref(param))

    def close(self):
        cm.rdma_destroy_id(self.id)
        cm.rdma_destroy_event_channel(self.channel)


class Unspoken:
    """The same with iWARP, by TCP alone: there the answer is all that it takes, and then it is the client's turn to speak."""

    port = 10000

    def __init__(self):
        private = request()
        # The connection manager does not know what ports TCP uses, and siw needs them for others.
        Unspoken.port += 1
        self.socket = socket.create_connection((SERVER, PORT), SOON, ("", Unspoken.port))
        # Revision 1 of MPA, without a checksum.
        self.socket.sendall(b"MPA ID Req Frame" + struct.pack(">HH", 1, len(private)) + private)

    def close(self):
        self.socket.close()


@case("flood", "2,000 requests that are not confirmed, and strangers that ping, until /run/flood.stop is there")
def flood():
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    requests, strangers, slow = [], [], []
    end = time.monotonic() + 240 * PATIENCE
    while not os.path.exists("/run/flood.stop") and time.monotonic() < end:
        if len(requests) < 2000:
            requests.append(Unspoken() if IWARP else Unconfirmed())
        if len(requests) in (200, 2000):
            open(f"/run/flood.{len(requests)}", "w", encoding="ascii").close()
        if len(requests) % 10 == 0:
            # The server may have no place, or ends one that was here for longer.
            try:
                strangers.append(Connection(request()))
            except (Again, Refused, Failed) as error:
                print(error)
            for stranger in strangers[:]:
                try:
                    stranger.send(message(PING))
                    stranger.receive()
                except (Ended, OSError):
                    strangers.remove(stranger)
            # Some take an answer now and then, so that the adapter of the server goes on trying.
            if len(slow) < 8:
                try:
                    slow.append(Connection(request(), receives=1))
                    for _ in range(8):
                        slow[-1].send(exports())
                except (Again, Refused, Failed, Ended, OSError) as error:
                    print(error)
            for one in slow[:]:
                one.look()
                if one.ended:
                    slow.remove(one)
    for asked in requests:
        asked.close()
    if len(requests) < 2000:
        raise Failed(f"only {len(requests)} requests")
    return 0


# Commands that end the connection. A function makes them, of the session and the connection.
@cases("malformed", 1,
       ("no byte", lambda s, io: b""),
       ("one byte too few", lambda s, io: flush()[:-1]),
       ("one byte too many", lambda s, io: flush(data=b"x")),
       ("operation 0", lambda s, io: command(0)),
       ("operation 9", lambda s, io: command(9)),
       ("no change of the reservation", lambda s, io: command(RESERVE, offset=0)),
       ("an unknown change of the reservation", lambda s, io: command(RESERVE, length=6)),
       ("a reservation of type 7", lambda s, io: command(RESERVE, length=2 | 7 << 8)),
       ("a reservation with two keys", lambda s, io: command(RESERVE, length=2 | 1 << 8, addr=1)),
       ("a change of the reservation with a flag", lambda s, io: command(RESERVE, flags=INLINE, length=1)),
       ("a report with a length", lambda s, io: command(REPORT, offset=0, length=272)),
       ("operation 255", lambda s, io: command(255)),
       ("an unknown flag", lambda s, io: flush(flags=32)),
       ("an atomic flush", lambda s, io: flush(flags=ATOMIC)),
       ("an atomic read", lambda s, io: command(READ, flags=ATOMIC, length=512, **io.remote())),
       ("atomic zeroes", lambda s, io: command(ZEROES, flags=ATOMIC, length=512)),
       ("an atomic secure erase", lambda s, io: command(ERASE, flags=ATOMIC, length=512)),
       ("all flags", lambda s, io: command(WRITE, flags=255, length=512, **io.remote())),
       ("a read with FUA", lambda s, io: command(READ, flags=FUA, length=512, **io.remote())),
       ("a write with no unmap", lambda s, io: command(WRITE, flags=NO_UNMAP, length=512, **io.remote())),
       ("an inline flush", lambda s, io: flush(flags=INLINE)),
       ("a discard with no unmap", lambda s, io: command(DISCARD, flags=NO_UNMAP, length=512)),
       ("zeroes with FUA", lambda s, io: command(ZEROES, flags=FUA, length=512)),
       ("a flush with an offset", lambda s, io: flush(offset=512)),
       ("a flush with a length", lambda s, io: flush(length=512)),
       ("a flush with an address", lambda s, io: flush(addr=1)),
       ("a flush with a key", lambda s, io: flush(rkey=1)),
       ("a discard with memory", lambda s, io: command(DISCARD, length=512, **io.remote())),
       ("a secure erase with memory", lambda s, io: command(ERASE, length=512, **io.remote())),
       ("zeroes with memory", lambda s, io: command(ZEROES, length=512, **io.remote())),
       ("an inline read with memory", lambda s, io: inline_read(512, **io.remote())),
       ("an inline write with memory", lambda s, io: inline_write(bytes(512), **io.remote())),
       ("a tag that is the depth", lambda s, io: flush(tag=s.depth)),
       ("the last tag there could be", lambda s, io: flush(tag=0xFFFF)),
       ("memory beyond 64 bits", lambda s, io: command(READ, length=4096, **io.remote(addr=2**64 - 4095))),
       ("a write with data that are not inline", lambda s, io: command(WRITE, length=512, **io.remote(), data=bytes(512))),
       ("an inline write with less data than it says", lambda s, io: inline_write(bytes(512), length=1024)),
       ("an inline write with more data than it says", lambda s, io: inline_write(bytes(1024), length=512)),
       ("an inline write without data", lambda s, io: inline_write(b"", length=512)),
       ("an inline read longer than agreed on", lambda s, io: inline_read(s.inline + s.block)),
       ("an inline read of 4 GiB", lambda s, io: inline_read(2**32 - 512)))
def malformed(make):
    session = Session()
    io, other = session.io(), session.io(1)
    works(io)
    io.send(make(session, io))
    for connection in io, other, session.control:
        connection.must_end()


@case("malformed", "an inline write longer than this session agreed on", 1)
def malformed_inline():
    session = Session(inline=512)
    expect("the inline data granted", session.inline, 512)
    io = session.io()
    io.send(inline_write(bytes(1024)))
    io.must_end()


@case("malformed", "an RDMA WRITE with immediate data, which is no message")
def malformed_write():
    session = Session()
    io = session.io()
    works(io)
    io.post(WR_RDMA_WRITE_WITH_IMMEDIATE, io.data, 0)
    io.must_end()
    session.control.must_end()


@case("malformed", "a message longer than any receive")
def malformed_long():
    session = Session()
    io = session.io()
    io.send(inline_write(bytes(64 << 10)))
    io.must_end()
    session.control.must_end()


# Commands that are refused, of what the session says.
@cases("refused", 0,
       ("a read of nothing", INVALID, lambda s: (READ, MINE, 0)),
       ("a read of more than there may be", INVALID, lambda s: (READ, MINE, s.max_io + s.block)),
       ("a read of 4 GiB", INVALID, lambda s: (READ, MINE, 2**32 - s.block)),
       ("a read that begins within a block", INVALID, lambda s: (READ, MINE + 1, s.block)),
       ("a read that ends within a block", INVALID, lambda s: (READ, MINE, s.block - 1)),
       ("a read of the block behind the end", OUT_OF_RANGE, lambda s: (READ, s.size, s.block)),
       ("a read across the end", OUT_OF_RANGE, lambda s: (READ, s.size - s.block, 2 * s.block)),
       ("a read at the end of all numbers", OUT_OF_RANGE, lambda s: (READ, 2**64 - s.block, s.block)),
       ("a read across the end of all numbers", OUT_OF_RANGE, lambda s: (READ, 2**64 - s.block, 2 * s.block)),
       ("a write of nothing", INVALID, lambda s: (WRITE, MINE, 0)),
       ("a write of more than there may be", INVALID, lambda s: (WRITE, MINE, s.max_io + s.block)),
       ("a write that begins within a block", INVALID, lambda s: (WRITE, MINE + s.block // 2, s.block)),
       ("a write behind the end", OUT_OF_RANGE, lambda s: (WRITE, s.size, s.block)),
       ("a write at the end of all numbers", OUT_OF_RANGE, lambda s: (WRITE, 2**64 - s.block, s.block)),
       ("an atomic write where there is none", NOT_SUPPORTED, lambda s: (WRITE, MINE, s.block, ATOMIC)),
       ("a secure erase where there is none", NOT_SUPPORTED, lambda s: (ERASE, MINE, s.block)),
       ("a discard where there is none", NOT_SUPPORTED, lambda s: (DISCARD, MINE, s.block)))
def refused_command(status, make):
    session = Session()
    expect("the most in a discard, an atomic write and a secure erase", (session.max_discard, session.atomic_max, session.max_erase), (0, 0, 0))
    io = session.io()
    op, offset, length, *flags = make(session)
    remote = io.remote() if op in (READ, WRITE) else {}
    io.memory[io.data : io.data + 4096] = b"?" * 4096
    expect("the status", status_of(io, command(op, flags=sum(flags), offset=offset, length=length, **remote)), status)
    expect("what is in the memory", io.memory[io.data : io.data + 4096], b"?" * 4096)
    works(io)


@cases("refused", 0, ("a write to an export that is read-only", b"ro"), ("a write by a host that may only read", b"host"))
def refused_write(export):
    session = Session(export, access=RO)
    io = session.io()
    for asked in (command(WRITE, offset=0, length=512, **io.remote()), inline_write(bytes(512), offset=0),
                  command(DISCARD, offset=0, length=session.block)):
        expect("the status", status_of(io, asked), READ_ONLY)
    expect("the status of a flush", status_of(io, flush()), OK)
    expect("what is there", read(io, 512, offset=0), bytes(512))


# Memory of user space that is no window cannot be invalidated by its peer: the connection would
# end.
@case("memory", "answers that invalidate no key, as the client's device takes none that do")
def memory_kept():
    io = Session(features=0).io()
    for tag, op in enumerate((WRITE, READ, WRITE, READ)):
        expect("the status", status_of(io, command(op, tag=tag, length=4096, **io.remote())), OK)
    works(io)


# Memory of the client that is not there: the server's RDMA fails.
@cases("memory", 0,
       ("an unknown key", lambda io: io.remote(rkey=0xDEAD00)),
       ("key 0", lambda io: io.remote(rkey=0)),
       ("a key that was taken back", lambda io: io.remote(rkey=io.stale_key())),
       ("memory before the region", lambda io: io.remote(addr=io.base - 4096)),
       ("memory across the end of the region", lambda io: io.remote(addr=io.base + len(io.memory) - 512)))
def memory(make):
    for op in READ, WRITE:
        session = Session()
        io = session.io()
        works(io)
        io.send(command(op, length=4096, **make(io)))
        io.must_end()
        session.control.must_end()


# All of these hold memory of the server; with 1 MiB each all that there is. Those with no RDMA
# READ hold it until the server gives them up.
HOLDS = ((0, lambda io, tag: command(WRITE, tag=tag, length=1 << 20, **io.remote())),
         (8, lambda io, tag: command(READ, tag=tag, length=1 << 20, **io.remote())),
         (0, lambda io, tag: command(WRITE, tag=tag, length=64 << 10, **io.remote())),
         (8, lambda io, tag: small_read(io, tag=tag)),
         (0, lambda io, tag: command(WRITE, tag=tag, length=1 << 20, **io.remote())),
         (8, lambda io, tag: flush(tag=tag)),
         (0, lambda io, tag: command(WRITE, tag=tag, length=8 << 10, **io.remote())),
         (0, lambda io, tag: command(WRITE, tag=tag, length=1 << 20, **io.remote())))


@cases("silent", 0, ("answers that are not received; RDMA READs that are not served", b"silent"))
@cases("pretend", 0, ("the same of hosts that are all one", b"hostile"))
@cases("large", 0, ("the same, while others want more than they have for themselves", b"silent"))
def silent(host):
    for _ in range(2):
        start = time.monotonic()
        sessions = [Session(host=host + b"%d" % number, host_id=bytes([number + 1] * 16)) for number in range(len(HOLDS))]
        ios = [session.busy(receives=1, reads=reads) for session, (reads, _) in zip(sessions, HOLDS)]
        for session, io, (_, make) in zip(sessions, ios, HOLDS):
            for tag in range(io.credit):
                io.send(make(io, tag))
        # Memory of user space cannot be invalidated by its peer: at the answer to a command with
        # memory the client's device gives up its queue pair, and the specification wants no message
        # about that. If the answer was acknowledged before, the server misses nothing.
        end = start + UNACKNOWLEDGED
        while time.monotonic() < end and not all(io.ended for io in ios):
            for io in ios:
                io.look(False)
            time.sleep(0.01)
        given_up = sum(io.ended for io in ios)
        print(f"{given_up} of {len(ios)} are given up after {time.monotonic() - start:.1f} s")
        if not given_up:
            raise Failed("the server gives up nobody")
        for connection in reversed(Connection.alive.copy()):
            connection.close()


# The server's device sends an answer for which there is no receive again every 0.66 s, six times.
# In these seconds a receive is posted for the next one: before it is sent for the second time, or
# for the fourth.
LATE, LAST = 0.5, 1.5


@case("crawl", "answers that are received late, but in time, and writes whose data wait until they are fetched")
def crawl():
    for _ in range(2):
        sessions = [Session(host=b"silent%d" % number, host_id=bytes([number + 1] * 16), features=0) for number in range(8)]
        ios = [session.busy(queue, receives=0, reads=1) for session in sessions for queue in range(session.queues)]
        for io in ios:
            for tag in range(io.credit):
                io.send(command(WRITE, tag=tag, length=32 << 10, **io.remote()))
        start = time.monotonic()
        while time.monotonic() < start + SOON:
            for io in ios:
                io.take_late(LATE)
            time.sleep(0.01)
        ended = sum(io.ended for io in ios)
        print(f"{ended} of {len(ios)} end within {time.monotonic() - start:.1f} s")
        if not ended:
            raise Failed("the server lets all go on")
        for connection in reversed(Connection.alive.copy()):
            connection.close()


@case("storm", "hosts that connect, ask for all memory that they can have, and are gone")
def storm():
    start, times = time.monotonic(), 0
    while time.monotonic() < start + 10 * PATIENCE:
        number = times % 8
        try:
            session = Session(host=b"silent%d" % number, host_id=bytes([number + 1] * 16))
            for queue in range(session.queues):
                io = session.io(queue)
                for tag in range(io.credit):
                    io.send(command(WRITE if tag % 2 else READ, tag=tag, length=session.max_io >> tag % 5, **io.remote()))
            times += 1
        except (Failed, Ended, Refused, OSError) as error:
            print(f"again: {type(error).__name__} {error}", flush=True)
        for connection in reversed(Connection.alive.copy()):
            connection.close()
    print(f"{times} times")
    if not times:
        raise Failed("never")


@case("modest", "one that has less than a hog is not given up because of what the hog wants")
def modest():
    one, hog = (Session(host=b"silent%d" % number, host_id=bytes([number + 1] * 16), features=0) for number in range(2))
    late, stuck = one.io(receives=0), hog.busy(receives=1, reads=0)
    late.send(command(READ, length=1 << 20, **late.remote()))
    for tag in range(stuck.credit):
        stuck.send(command(WRITE, tag=tag, length=1 << 20, **stuck.remote()))
    # No longer than the server's device sends it again.
    late.taken, start = time.monotonic(), time.monotonic()
    while not late.inbox and not late.ended and time.monotonic() < start + SOON:
        late.take_late(3.5)
        time.sleep(0.01)
    print(f"the answer is there after {time.monotonic() - start:.1f} s")
    expect("the end of who is late once", late.ended, False)
    works(one.io(1))


@case("passing", "what fits a host's own memory does not wait for a larger command, which waits for what others have")
def passing():
    for _ in range(5):
        for number in range(4):
            hog = Session(host=b"silent%d" % number, host_id=bytes([number + 1] * 16)).io(receives=1, reads=0)
            for tag in range(4):
                hog.send(command(WRITE, tag=tag, length=1 << 20, **hog.remote()))
        io = Session(host=b"silent4", host_id=b"p" * 16, features=0).io()
        time.sleep(1)
        # The device may take longer for the larger one, but not as long as for so many.
        io.send(command(READ, length=1 << 20, **io.remote()))
        small, tag = 0, 1
        while tag:
            io.send(command(READ, tag=1, length=4096, **io.remote()))
            tag, = struct.unpack_from("<H", io.receive()[0], 2)
            small += tag
        print(f"answers before that of the larger one: {small}")
        for connection in reversed(Connection.alive.copy()):
            connection.close()
        # All memory may not have been taken.
        if small >= 10:
            return
    raise Failed("small ones wait for the larger one")


@case("second", "another host, which reads and writes")
def second():
    works(Session(host=b"silent0", host_id=b"s" * 16).io())


# The host named hog, of tools/bench/neighbour, ends when that file is there.
HOG_STOP = "/run/hog.stop"


def hogs(begin, look):
    """Takes memory by `begin`, which returns connections, again and again, and looks at them by `look` meanwhile."""
    end, taken = time.monotonic() + 3600, 0
    while not os.path.exists(HOG_STOP) and time.monotonic() < end:
        try:
            ios = begin()
            taken += 1
            print(f"taken {taken}", flush=True)
            while not os.path.exists(HOG_STOP) and not all(io.ended for io in ios):
                for io in ios:
                    look(io)
                time.sleep(0.1)
        except (Failed, Ended, Refused, OSError) as error:
            # The server may not have let go of the session before.
            print(f"again: {type(error).__name__} {error}", flush=True)
            time.sleep(0.2)
        for connection in reversed(Connection.alive.copy()):
            connection.close()
    if not taken:
        raise Failed("nothing was taken")


def hog_session(**wanted):
    return Session(b"block", host=b"hog", host_id=b"o" * 16, **wanted)


@case("hog_silent", "one host that keeps all memory that it can have, for an hour at most")
def hog_silent():
    def begin():
        session = hog_session(queues=4)
        ios = [session.busy(queue, receives=1, reads=0) for queue in range(session.queues)]
        for io in ios:
            for tag in range(io.credit):
                io.send(command(WRITE, tag=tag, length=session.max_io, **io.remote()))
        return ios

    hogs(begin, lambda io: io.look(False))


@case("hog_slow", "one host that lets go of all memory that it can have as late as it may, and asks again, for an hour at most")
def hog_slow():
    def ask_again(io, tag):
        io.send(command(WRITE, tag=tag, length=1 << 20, **io.remote()))

    def begin():
        sessions = [hog_session(queues=4, features=0) for _ in range(4)]
        ios = [session.io(queue, receives=0) for session in sessions for queue in range(session.queues)]
        for io in ios:
            # What the server has to send on one connection takes no longer than it waits.
            for tag in range(2):
                ask_again(io, tag)
        return ios

    def look(io):
        io.take_late(LAST)
        while io.inbox:
            response, _ = io.inbox.pop(0)
            ask_again(io, struct.unpack_from("<HH", response)[1])

    hogs(begin, look)


@case("hog_many", "one host that waits for memory on as many connections as it can have, for an hour at most")
def hog_many():
    def begin():
        ios = []
        for _ in range(4):
            session = hog_session(queues=12)
            for queue in range(session.queues):
                ios.append(session.busy(queue, receives=1, reads=0))
                for tag in range(ios[-1].credit):
                    ios[-1].send(command(WRITE, tag=tag, length=64 << 10, **ios[-1].remote()))
        return ios

    hogs(begin, lambda io: io.look(False))


# What one account may have: here all hosts without an entry. silent0 has one.
def memory_of(session):
    """The bytes that the server counts for a session."""
    return (64 << 10) + session.queues * ((32 << 10) + 1024 * session.depth)


def server_memory():
    """The server has as much as this host."""
    with open("/proc/meminfo") as meminfo:
        return 1024 * int(meminfo.readline().split()[1])


@case("share", "paths that ask for all queues of the largest depth, until there is no memory for more")
def share_memory():
    sessions, memory = [], server_memory()
    try:
        while len(sessions) < 64:
            sessions.append(Session(b"many", queues=64, depth=1024, host=b"hostile%d" % (len(sessions) % 8)))
    except Refused as refused:
        expect("the refusal", refused.args[0], NO_MEMORY)
    sizes = [memory_of(session) for session in sessions]
    print(f"{len(sessions)} sessions of {sessions[0].queues} queues with depth {sessions[0].depth}", flush=True)
    expect("each session has its part at most", max(sizes) <= memory // 64, True)
    expect("all have their part at most", sum(sizes) <= memory // 16, True)
    expect("what each gets is the same", len(set(sizes)), 1)
    # Another host finds as much, and this one finds it again.
    other = Session(b"many", queues=64, depth=1024, host=b"silent0")
    expect("what another host gets", memory_of(other), sizes[0])
    # A path that comes back does not count twice.
    map_id = os.urandom(16)
    sessions.pop().control.close()
    again = time.monotonic() + PATIENCE
    while True:
        try:
            first = Session(b"many", queues=64, depth=1024, map_id=map_id)
            break
        except Refused as refused:
            if time.monotonic() > again:
                raise
            time.sleep(0.1)
    expect("what it gets again", memory_of(Session(b"many", queues=64, depth=1024, map_id=map_id, epoch=2)), sizes[0])
    first.control.must_end()


@case("share", "maps that say that they have disks which need all queues of the largest depth")
def share_resumed():
    sessions = []
    try:
        while len(sessions) < 64:
            sessions.append(Session(b"many", queues=64, depth=1024, resume=1))
    except Refused as refused:
        expect("the refusal", refused.args[0], NO_MEMORY)
    expect("all have their part at most", sum(map(memory_of, sessions)) <= server_memory() // 16, True)
    expect("what another host gets", Session(b"many", queues=1, depth=16, host=b"silent0").depth, 16)


def register(session, key):
    """Registers a key for persistent reservations, with whatever the map had before. Returns the status."""
    io = session.io()
    io.send(command(RESERVE, length=1 | 1 << 16, offset=0, addr=key, rkey=1))
    return struct.unpack_from("<H", io.receive()[0])[0]


@case("share", "keys for persistent reservations, registered by as many maps as there may be")
def share_registrants():
    for number in range(8):
        session = Session(b"many", queues=1, depth=1)
        expect("the status", register(session, 1 + number), OK)
        session.ask(message(LOGOUT))
    expect("the status of one more", register(Session(b"many", queues=1, depth=1), 100), NO_SPACE)
    expect("the status for another host", register(Session(b"many", queues=1, depth=1, host=b"silent0"), 200), OK)


# The device takes its time for all that follows.
@case("slow", "one command more than there is credit", 1)
def slow_credit():
    session = Session(b"slow", depth=128)
    expect("the credit", session.credit < session.depth, True)
    io = session.io()
    for tag in range(session.credit + 1):
        io.send(small_read(io, offset=0, tag=tag))
    io.must_end()


@cases("slow", 1, ("a tag that is in flight", flush(tag=3)), ("a tag that is in flight, to be refused", inline_write(b"x", tag=3)))
def slow_tag(second):
    session = Session(b"slow")
    io = session.io()
    io.send(small_read(io, offset=0, tag=3))
    io.send(second)
    io.must_end()
    expect("answers", len(io.inbox), 0)


def in_flight():
    """A session with as many commands of all kinds in flight as it may have."""
    session = Session(b"slow")
    ios = [session.busy(queue) for queue in range(2)]
    for io in ios:
        kinds = (small_read(io, offset=0), inline_write(bytes(4096), offset=4096), flush(),
                 command(READ, offset=0, length=1 << 16, **io.remote()), command(WRITE, offset=0, length=1 << 16, **io.remote()))
        for tag in range(io.credit):
            asked = bytearray(kinds[tag % len(kinds)])
            struct.pack_into("<H", asked, 2, tag)
            io.send(bytes(asked))
    # Some are with the device then, and some have yet to get there.
    time.sleep(0.02)
    return session, ios


@case("slow", "the end of an I/O connection with commands in flight")
def slow_end_of_io():
    session, ios = in_flight()
    ios[0].close()
    ios[1].must_end()
    session.control.must_end()


@case("slow", "the end of the control connection with commands in flight")
def slow_end_of_control():
    session, ios = in_flight()
    session.control.close()
    for io in ios:
        io.must_end()


@case("slow", "a logout with commands in flight")
def slow_logout():
    session, ios = in_flight()
    expect("the status", session.ask(message(LOGOUT))[0], OK)
    for io in ios:
        io.must_end()


@case("slow", "a client that gives up in silence with commands in flight")
def slow_silence():
    # Its device does so at the answer to the first read, as nobody may invalidate its memory.
    session, (io, other) = in_flight()
    for connection in io, other, session.control:
        connection.must_end(repost=False, seconds=UNACKNOWLEDGED)


@case("slow", "memory that goes away with commands in flight")
def slow_memory():
    for _ in range(5):
        session, (io, _) = in_flight()
        mr, io.mr = io.mr, None
        verbs.ibv_dereg_mr(mr)
        # The client's device gives up its queue pair without a message if the answer that finds no
        # memory is one to a read.
        io.until(lambda: io.ended or len(io.inbox) == io.credit, "the connection goes on", False, UNACKNOWLEDGED)
        if io.ended:
            return
        # On a busy host all were answered before the memory went away.
        session.control.close()
    raise Failed("the commands are answered too soon")


@case("death", "the death of a client with commands in flight")
def death():
    session, ios = in_flight()
    Connection.alive.clear()


# The client reads and writes the memory of a RAM export by itself.
@case("ram", "what is granted works, for who may only read, too")
def ram_works():
    for access in RW, RO:
        session = Session(b"ram", access=access)
        io = session.io()
        grants = session.grants()
        for addr, length, rkey in grants:
            expect("a read of the first bytes", io.rdma(WR_RDMA_READ, addr, rkey), 0)
            expect("a read of the last bytes", io.rdma(WR_RDMA_READ, addr + length - 4096, rkey), 0)


@cases("ram", 0,
       ("a read beyond a slab", WR_RDMA_READ, lambda addr, length, rkey: (addr + length - 512, rkey)),
       ("a read before a slab", WR_RDMA_READ, lambda addr, length, rkey: (addr - 512, rkey)),
       ("a write beyond a slab", WR_RDMA_WRITE, lambda addr, length, rkey: (addr + length - 512, rkey)),
       ("a read with an unknown key", WR_RDMA_READ, lambda addr, length, rkey: (addr, rkey ^ 0x5A)),
       ("a write by who may only read", WR_RDMA_WRITE, lambda addr, length, rkey: (addr, rkey)))
def ram_beyond(opcode, make):
    session = Session(b"ram", access=RO)
    io = session.io()
    grant = session.grants()[0]
    expect("a read", io.rdma(WR_RDMA_READ, grant[0], grant[2]), 0)
    if io.rdma(opcode, *make(*grant)) == 0:
        raise Failed("it is done")
    io.must_end()
    session.control.must_end()


# Clients of one export share its keys, which are worth nothing without a connection.
@cases("ram", 0,
       ("the key of another export", b"other", RW, WR_RDMA_READ),
       ("the key of who may write, for who may only read: a write", b"ram", RW, WR_RDMA_WRITE),
       ("the key of who may write, for who may only read: a read", b"ram", RW, WR_RDMA_READ))
def ram_foreign(export, access, opcode):
    session, other = Session(b"ram", access=RO), Session(export, access=access)
    io, beside = session.io(), other.io()
    addr, _, rkey = other.grants()[0]
    expect("a read by whose key it is", beside.rdma(WR_RDMA_READ, addr, rkey), 0)
    if io.rdma(opcode, addr, rkey) == 0:
        raise Failed("it is done")
    io.must_end()
    expect("a read by whose key it is, after that", beside.rdma(WR_RDMA_READ, addr, rkey), 0)


@case("ram", "who comes back finds the same keys, and reaches nothing in between")
def ram_again():
    session, other = Session(b"ram"), Session(b"ram")
    io, _ = session.io(), other.io()
    grant = session.grants()[0]
    expect("what another one is granted", other.grants()[0], grant)
    expect("the status of the logout", session.ask(message(LOGOUT))[0], OK)
    if io.rdma(WR_RDMA_READ, grant[0], grant[2]) == 0:
        raise Failed("it reads")
    again = Session(b"ram")
    io = again.io()
    expect("what is granted later", again.grants()[0], grant)
    expect("a read", io.rdma(WR_RDMA_READ, grant[0], grant[2]), 0)


@case("ram", "grants without a connection")
def ram_unconnected():
    session = Session(b"ram")
    expect("the status", session.ask(message(GRANT, struct.pack("<II", 0, 1)))[0], BAD_STATE)
    _ = session.io()
    session.grants()


@case("ram", "a message where none is expected")
def ram_message():
    session = Session(b"ram")
    io = session.io()
    io.send(flush())
    if IWARP:
        # Nobody waits for a receive.
        io.must_end()
        return
    io.until(lambda: io.sent, "the message is neither taken nor refused")
    expect("that it was taken", io.sent[0] == 0, False)


@cases("ram", 0, ("grants beyond the end", 0, 2**32 - 1), ("grants at the end of all numbers", 2**32 - 1, 2), ("no grants", 0, 0))
def ram_grants(first, count):
    session = Session(b"ram")
    _ = session.io()
    expect("the status", session.ask(message(GRANT, struct.pack("<II", first, count)))[0], MALFORMED)
    session.grants()


# What means nothing with iWARP, and why. Words of cases.
NOT_IWARP = {
    "messages that are sent again for ever": "TCP sends again, as often as its host wants",
    "no receives, which is waited for for ever": "who has no receive ends the connection",
    "an RDMA WRITE with immediate data, which is no message": "there are no immediate data",
}


def main(server, wanted):
    global SERVER
    SERVER = server
    failed = violations = 0
    only = os.environ.get("FARBLK_CASE", "")
    for group, words, counted, function, arguments in CASES:
        if group != wanted or only not in words:
            continue
        if IWARP and words in NOT_IWARP:
            print(f"{words}: skipped with iWARP: {NOT_IWARP[words]}", flush=True)
            continue
        start = time.monotonic()
        try:
            said = function(*arguments)
            counted = counted if said is None else said
            print(f"{words}: ok ({time.monotonic() - start:.1f} s)", flush=True)
        except (Failed, Ended, Refused, OSError) as error:
            print(f"FAILED: {words}: {type(error).__name__} {error}", flush=True)
            failed += 1
        violations += counted
        for connection in reversed(Connection.alive.copy()):
            connection.close()
    print(f"violations {violations}", flush=True)
    os._exit(failed != 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
