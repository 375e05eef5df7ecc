#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A peer of rdma_rxe that sends what it likes, and when: rxe.py CASE

The device rxe9 lies on one end of a pair of veth; this program is both the user of its queue pairs, by libibverbs, and their peer, by
raw packets at the other end. So each case decides what is on the wire, in which order, and does not depend on time. rxe.sh makes the
devices and runs the cases.

Exits with 0 if rdma_rxe does what it should, with 3 if it does what its bug makes it do, which a line says, with 4 where user space has
no RDMA, and with 1 if anything else happened.
"""
import ctypes
import itertools
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time
import zlib
from ctypes import POINTER, Structure, addressof, byref, c_char, c_int, c_ubyte, c_uint, c_uint16, c_uint32, c_uint64, c_void_p

import hostile
from hostile import Cap, ConnParam, Context, Mr, QpInitAttr, RecvWr, SendWr, Sge, Wc, cm

SOON = 10 * hostile.PATIENCE
DEVICE, NEAR, FAR = "rxe9", "rxe-near", "rxe-far"
HERE, THERE = "10.77.0.1", "10.77.0.2"
SYS = f"/sys/class/infiniband/{DEVICE}/ports/1"
# The peer's queue pair, the first packet numbers of both, and the bytes of a full packet.
PEER_QP, OUR_PSN, PEER_PSN, MTU = 0x55, 100, 200, 1024
QKEY = 0x1234

SEND_FIRST, SEND_LAST, SEND_ONLY, READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY, ACKNOWLEDGE = 0, 2, 4, 12, 13, 14, 15, 16, 17
UD_SEND_ONLY = 100
WR_LOCAL_INV, WR_BIND_MW = 7, 8
SUCCESS, FLUSHED, BAD_RESPONSE = 0, 5, 7
RESET, INIT, RTR, RTS, ERR = 0, 1, 2, 3, 6
RC, UD = 2, 4
MW_BIND = 16
LAST_WQE_REACHED = 16


class Bug(Exception):
    """The kernel's rdma_rxe has the bug of this case."""


class Failed(Exception):
    """Something else is wrong."""


# --- libibverbs -----------------------------------------------------------------------------------


class Grh(Structure):
    _fields_ = [("dgid", c_ubyte * 16), ("flow_label", c_uint32), ("sgid_index", c_ubyte), ("hop_limit", c_ubyte), ("traffic_class", c_ubyte)]


class AhAttr(Structure):
    # The GID has the alignment of a number of 64 bits.
    _fields_ = [("grh", Grh), ("dlid", c_uint16), ("sl", c_ubyte), ("src_path_bits", c_ubyte), ("static_rate", c_ubyte), ("is_global", c_ubyte),
                ("port_num", c_ubyte), ("rest", c_ubyte)]


class QpAttr(Structure):
    _fields_ = [("qp_state", c_int), ("cur_qp_state", c_int), ("path_mtu", c_int), ("path_mig_state", c_int), ("qkey", c_uint32),
                ("rq_psn", c_uint32), ("sq_psn", c_uint32), ("dest_qp_num", c_uint32), ("access", c_uint), ("cap", Cap), ("ah_attr", AhAttr),
                ("alt_ah_attr", AhAttr), ("pkey_index", c_uint16), ("alt_pkey_index", c_uint16), ("en_sqd_async_notify", c_ubyte),
                ("sq_draining", c_ubyte), ("max_rd_atomic", c_ubyte), ("max_dest_rd_atomic", c_ubyte), ("min_rnr_timer", c_ubyte),
                ("port_num", c_ubyte), ("timeout", c_ubyte), ("retry_cnt", c_ubyte), ("rnr_retry", c_ubyte), ("alt_port_num", c_ubyte),
                ("alt_timeout", c_ubyte), ("rate_limit", c_uint32), ("end", c_uint32)]


# Which of them a change of the state sets.
STATE, ACCESS, PKEY_INDEX, IN_PORT, IN_QKEY, AV, PATH_MTU, TIMEOUT, RETRY_CNT, RNR_RETRY = (1 << n for n in (0, 3, 4, 5, 6, 7, 8, 9, 10, 11))
RQ_PSN, MAX_RD_ATOMIC, MIN_RNR_TIMER, SQ_PSN, MAX_DEST_RD_ATOMIC, DEST_QPN = (1 << n for n in (12, 13, 15, 16, 17, 20))


class Qp(Structure):
    _fields_ = [("context", c_void_p * 6), ("handle", c_uint32), ("number", c_uint32)]


class Mw(Structure):
    _fields_ = [("context", c_void_p), ("pd", c_void_p), ("rkey", c_uint32)]


class SrqInitAttr(Structure):
    _fields_ = [("context", c_void_p), ("max_wr", c_uint32), ("max_sge", c_uint32), ("srq_limit", c_uint32)]


class AsyncEvent(Structure):
    _fields_ = [("element", c_void_p), ("type", c_int)]


verbs = hostile.library(
    "libibverbs.so.1", ibv_get_device_list=(POINTER(c_void_p), c_void_p), ibv_get_device_name=(ctypes.c_char_p, c_void_p),
    ibv_open_device=(POINTER(Context), c_void_p), ibv_alloc_pd=(c_void_p, POINTER(Context)),
    ibv_create_cq=(c_void_p, POINTER(Context), c_int, c_void_p, c_void_p, c_int),
    ibv_reg_mr=(POINTER(Mr), c_void_p, c_void_p, ctypes.c_size_t, c_int), ibv_create_qp=(POINTER(Qp), c_void_p, POINTER(QpInitAttr)),
    ibv_create_srq=(c_void_p, c_void_p, POINTER(SrqInitAttr)), ibv_modify_qp=(c_int, POINTER(Qp), POINTER(QpAttr), c_int),
    ibv_query_qp=(c_int, POINTER(Qp), POINTER(QpAttr), c_int, POINTER(QpInitAttr)), ibv_create_ah=(c_void_p, c_void_p, POINTER(AhAttr)),
    ibv_get_async_event=(c_int, POINTER(Context), POINTER(AsyncEvent)), ibv_ack_async_event=(None, POINTER(AsyncEvent)))


def open_device():
    devices = verbs.ibv_get_device_list(None)
    for index in itertools.count():
        if not devices[index]:
            raise Failed(f"there is no {DEVICE}")
        if verbs.ibv_get_device_name(devices[index]).decode() == DEVICE:
            return verbs.ibv_open_device(devices[index])


def gid_of(address):
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


def gid_index():
    """The index of our address among the GIDs."""
    wanted = gid_of(HERE).hex()
    for index in range(16):
        with open(f"{SYS}/gids/{index}", encoding="ascii") as gid:
            if gid.read().strip().replace(":", "") == wanted:
                return index
    raise Failed(f"{HERE} is no GID of {DEVICE}")


def address_of_peer():
    grh = Grh((c_ubyte * 16)(*gid_of(THERE)), 0, gid_index(), 64, 0)
    return AhAttr(grh, is_global=1, port_num=1)


class Queue:
    """A queue pair with what it needs. Its memory has 64 KiB, which the window of `window` can show to the peer."""

    def __init__(self, kind=RC, srq=False, timeout=0):
        """`timeout` is that for acknowledgments, as verbs have it; with 0 nothing is sent again."""
        self.device = open_device()
        ops = self.device.contents
        self.poll_cq = ops.operation(Context.POLL_CQ, c_void_p, c_int, POINTER(Wc))
        self.post_send = ops.operation(Context.POST_SEND, POINTER(Qp), POINTER(SendWr), POINTER(c_void_p))
        self.post_recv = ops.operation(Context.POST_RECV, POINTER(Qp), POINTER(RecvWr), POINTER(c_void_p))
        self.post_srq_recv = ops.operation(20, c_void_p, POINTER(RecvWr), POINTER(c_void_p))
        self.memory = mmap.mmap(-1, 65536)
        self.base = addressof(c_char.from_buffer(self.memory))
        self.pd = verbs.ibv_alloc_pd(self.device)
        access = hostile.LOCAL_WRITE | hostile.REMOTE_WRITE | hostile.REMOTE_READ
        self.mr = verbs.ibv_reg_mr(self.pd, self.base, len(self.memory), access | MW_BIND)
        self.cq = verbs.ibv_create_cq(self.device, 64, None, None, 0)
        self.srq = verbs.ibv_create_srq(self.pd, byref(SrqInitAttr(None, 16, 1, 0))) if srq else None
        init = QpInitAttr(None, self.cq, self.cq, self.srq, Cap(16, 0 if srq else 16, 1, 0 if srq else 1, 0), kind, 1)
        self.qp = verbs.ibv_create_qp(self.pd, byref(init))
        self.number = self.qp.contents.number
        if kind == UD:
            self.modify(STATE | PKEY_INDEX | IN_PORT | IN_QKEY, qp_state=INIT, port_num=1, qkey=QKEY)
            self.modify(STATE, qp_state=RTR)
            self.modify(STATE | SQ_PSN, qp_state=RTS, sq_psn=OUR_PSN)
            self.ah = verbs.ibv_create_ah(self.pd, byref(address_of_peer()))
            return
        self.modify(STATE | PKEY_INDEX | IN_PORT | ACCESS, qp_state=INIT, port_num=1, access=access)
        self.modify(STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, qp_state=RTR, path_mtu=3, dest_qp_num=PEER_QP,
                    rq_psn=PEER_PSN, ah_attr=address_of_peer(), max_dest_rd_atomic=1, min_rnr_timer=1)
        self.modify(STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC, qp_state=RTS, timeout=timeout, retry_cnt=6, rnr_retry=6,
                    sq_psn=OUR_PSN, max_rd_atomic=4)

    def modify(self, mask, **values):
        verbs.ibv_modify_qp(self.qp, byref(QpAttr(**values)), mask)

    def ends(self):
        """Waits until the queue pair is in error."""
        end = time.monotonic() + SOON
        while self.state() != ERR:
            if time.monotonic() > end:
                raise Failed(f"the state is {self.state()}")
            time.sleep(0.01)

    def state(self):
        attr = QpAttr()
        verbs.ibv_query_qp(self.qp, byref(attr), STATE, byref(QpInitAttr()))
        return attr.qp_state

    def sge(self, offset, length):
        return ctypes.pointer(Sge(self.base + offset, length, self.mr.contents.lkey))

    def receive(self, number, length):
        wr = RecvWr(number, None, self.sge(0, length), 1)
        if self.srq:
            self.taken(self.post_srq_recv(self.srq, byref(wr), byref(c_void_p())))
        else:
            self.taken(self.post_recv(self.qp, byref(wr), byref(c_void_p())))

    def post(self, *requests):
        """Posts work requests at once."""
        for request, following in zip(requests, requests[1:]):
            request.next = addressof(following)
        self.taken(self.post_send(self.qp, byref(requests[0]), byref(c_void_p())))

    @staticmethod
    def taken(result):
        if result:
            raise Failed(f"a work request is not taken: {os.strerror(abs(result))}")

    def send(self, number, length=64):
        return SendWr(number, None, self.sge(0, length), 1, hostile.WR_SEND, hostile.SIGNALED)

    def datagram(self, number):
        wr = self.send(number)
        # The address handle, the queue pair and its key.
        wr.remote_addr, wr.rkey = self.ah, PEER_QP
        wr.rest[:4] = struct.pack("=I", QKEY)
        return wr

    def read(self, number, length):
        return SendWr(number, None, self.sge(0, length), 1, hostile.WR_RDMA_READ, hostile.SIGNALED, 0, 0x1000, 0x42)

    def window(self):
        """A memory window of the second type."""
        return ctypes.CFUNCTYPE(POINTER(Mw), c_void_p, c_int)(self.device.contents.ops[7])(self.pd, 2)

    def bind(self, number, mw, key):
        """Makes it valid, with this key."""
        wr = SendWr(number, None, None, 0, WR_BIND_MW, hostile.SIGNALED)
        # From the byte 80 of the work request on; what is there begins at 52.
        bind = struct.pack("=QI4xQQQI", addressof(mw.contents), key, addressof(self.mr.contents), self.base, len(self.memory), hostile.REMOTE_WRITE)
        wr.rest[28 : 28 + len(bind)] = bind
        return wr

    def completions(self, count, seconds=SOON):
        """Completions, by their numbers: `count` of them, or those that came in time."""
        found, end = {}, time.monotonic() + seconds
        wc = Wc()
        while len(found) < count:
            if self.poll_cq(self.cq, 1, byref(wc)):
                found[wc.wr_id] = wc.status
            elif time.monotonic() > end:
                break
            else:
                time.sleep(0.01)
        return found

    def wait_for_event(self, wanted):
        """Waits for an asynchronous event of the queue pair."""
        # The context has its number behind the operations and another one.
        ready = select.poll()
        ready.register(c_int.from_address(addressof(self.device.contents) + 268).value, select.POLLIN)
        event = AsyncEvent()
        while True:
            if not ready.poll(SOON * 1000):
                raise Failed(f"event {wanted} does not come")
            verbs.ibv_get_async_event(self.device, byref(event))
            verbs.ibv_ack_async_event(byref(event))
            if event.type == wanted:
                return


# --- packets --------------------------------------------------------------------------------------


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


class Peer:
    """Who sends and receives raw packets at the other end."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        self.socket.bind((FAR, 0x0800))
        self.far, self.near = (self.mac(name) for name in (FAR, NEAR))

    @staticmethod
    def mac(name):
        with open(f"/sys/class/net/{name}/address", encoding="ascii") as address:
            return bytes.fromhex(address.read().strip().replace(":", ""))

    def send(self, qpn, opcode, psn, body=b"", wants_ack=False):
        """Sends a packet whose headers behind the BTH, and data, are `body`: a number of 4 bytes."""
        bth = struct.pack(">BBHII", opcode, 0x40, 0xFFFF, qpn, psn | wants_ack << 31)
        udp = struct.pack(">HHHH", 0xC000, 4791, 8 + len(bth) + len(body) + 4, 0)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(bth) + len(body) + 4, 1, 0x4000, 64, 17, 0, socket.inet_aton(THERE),
                         socket.inet_aton(HERE))
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        # What may change on the way counts as ones.
        masked = ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + ip[12:] + udp[:6] + b"\xff\xff" + bth[:4] + b"\xff" + bth[5:]
        icrc = struct.pack("<I", zlib.crc32(masked + body, ~0xDEBB20E3 & 0xFFFFFFFF))
        self.socket.send(self.near + self.far + b"\x08\x00" + ip + udp + bth + body + icrc)

    def answer(self, queue, opcode, psn, data=b""):
        """Sends a response: all but those in the middle of a READ begin with an AETH, which acknowledges."""
        aeth = b"" if opcode == READ_MIDDLE else struct.pack(">I", 0x1F << 24 | psn)
        self.send(queue.number, opcode, psn, aeth + data)

    def packet(self, seconds=SOON):
        """The opcode, the queue pair and the number of the next packet of rxe9; None if none comes in time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                frame, address = self.socket.recvfrom(4096)
            except TimeoutError:
                break
            # Not what we sent ourselves.
            if address[2] == socket.PACKET_OUTGOING or frame[23] != 17 or frame[36:38] != struct.pack(">H", 4791):
                continue
            opcode, _, _, qpn, psn = struct.unpack_from(">BBHII", frame, 42)
            return opcode, qpn & 0xFFFFFF, psn & 0xFFFFFF
        return None

    def expect(self, opcode, psn):
        got = self.packet()
        if got is None or (got[0], got[2]) != (opcode, psn):
            raise Failed(f"the packet with the opcode {opcode} and the number {psn} does not come, but {got}")


def data(length):
    return os.urandom(length)


def expect(what, got, wanted):
    if got != wanted:
        raise Failed(f"{what}: {got}, not {wanted}")


# --- cases ----------------------------------------------------------------------------------------


def control():
    """What works with the bugs: messages both ways, READs, datagrams. The peer and this program do what they should."""
    peer, queue = Peer(), Queue(srq=True)
    sent = data(3 * MTU)
    queue.receive(9, 4096)
    queue.post(queue.send(1), queue.read(2, len(sent)))
    peer.expect(SEND_ONLY, OUR_PSN)
    peer.expect(READ_REQUEST, OUR_PSN + 1)
    peer.answer(queue, ACKNOWLEDGE, OUR_PSN)
    for number, opcode in enumerate((READ_FIRST, READ_MIDDLE, READ_LAST)):
        peer.answer(queue, opcode, OUR_PSN + 1 + number, sent[number * MTU :][:MTU])
    expect("completions", queue.completions(2), {1: SUCCESS, 2: SUCCESS})
    expect("what was read is right", queue.memory[: len(sent)] == sent, True)
    message = data(2 * MTU)
    peer.send(queue.number, SEND_FIRST, PEER_PSN, message[:MTU])
    peer.send(queue.number, SEND_LAST, PEER_PSN + 1, message[MTU:], wants_ack=True)
    expect("completions of a message", queue.completions(1), {9: SUCCESS})
    expect("the message is right", queue.memory[: len(message)] == message, True)
    peer.expect(ACKNOWLEDGE, PEER_PSN + 1)
    datagrams = Queue(UD)
    datagrams.post(datagrams.datagram(3))
    expect("completions of a datagram", datagrams.completions(1), {3: SUCCESS})
    peer.expect(UD_SEND_ONLY, OUR_PSN)
    # A READ that was answered in part is sent again for the rest. A network adapter answers it as a
    # new one, rxe goes on in the middle.
    for opcode in (READ_FIRST, READ_MIDDLE):
        # 4.096 us x 2^17 = 537 ms.
        peer, queue = Peer(), Queue(timeout=17)
        sent = data(2 * MTU + 100)
        queue.post(queue.read(1, len(sent)))
        peer.expect(READ_REQUEST, OUR_PSN)
        peer.answer(queue, READ_FIRST, OUR_PSN, sent[:MTU])
        peer.expect(READ_REQUEST, OUR_PSN + 1)
        peer.answer(queue, opcode, OUR_PSN + 1, sent[MTU : 2 * MTU])
        peer.answer(queue, READ_LAST, OUR_PSN + 2, sent[2 * MTU :])
        expect("completions of a READ that was sent again", queue.completions(1), {1: SUCCESS})
        expect("what was read is right", queue.memory[: len(sent)] == sent, True)


def late_ack():
    """The ACK of a SEND comes between the responses to a READ behind it."""
    peer, queue = Peer(), Queue()
    sent = data(3 * MTU)
    queue.post(queue.send(1), queue.read(2, len(sent)))
    peer.expect(SEND_ONLY, OUR_PSN)
    peer.expect(READ_REQUEST, OUR_PSN + 1)
    peer.answer(queue, READ_FIRST, OUR_PSN + 1, sent[:MTU])
    peer.answer(queue, ACKNOWLEDGE, OUR_PSN)
    peer.answer(queue, READ_MIDDLE, OUR_PSN + 2, sent[MTU : 2 * MTU])
    peer.answer(queue, READ_LAST, OUR_PSN + 3, sent[2 * MTU :])
    found = queue.completions(2)
    right = queue.memory[: len(sent)] == sent
    if found == {1: SUCCESS, 2: SUCCESS} and not right:
        raise Bug("an RDMA READ completed with success, and not all of its bytes were read")
    expect("completions", found, {1: SUCCESS, 2: SUCCESS})
    expect("the state", queue.state(), RTS)
    # Nor is the READ sent again.
    queue.post(queue.send(3))
    peer.expect(SEND_ONLY, OUR_PSN + 4)


def acknowledged():
    """A READ gets an ACK for an answer, and a right one when it is sent again."""
    peer, queue = Peer(), Queue()
    sent = data(MTU)
    queue.post(queue.read(1, MTU))
    peer.expect(READ_REQUEST, OUR_PSN)
    peer.answer(queue, ACKNOWLEDGE, OUR_PSN)
    # It is completed, or sent again.
    end = time.monotonic() + SOON
    while not (found := queue.completions(1, 0)) and not (again := peer.packet(0.05)):
        if time.monotonic() > end:
            raise Failed("the READ is not sent again")
    if found == {1: SUCCESS}:
        raise Bug("an RDMA READ completed with success by an ACK, and nothing was read")
    expect("completions", found, {})
    expect("what is sent again", again, (READ_REQUEST, PEER_QP, OUR_PSN))
    peer.answer(queue, READ_ONLY, OUR_PSN, sent)
    expect("completions", queue.completions(1), {1: SUCCESS})
    expect("what was read is right", queue.memory[:MTU] == sent, True)


def bad_response():
    """The answer to a READ begins with its middle."""
    peer, queue = Peer(), Queue()
    queue.post(queue.read(1, 3 * MTU))
    peer.expect(READ_REQUEST, OUR_PSN)
    peer.answer(queue, READ_MIDDLE, OUR_PSN, data(MTU))
    found = queue.completions(1)
    if found == {1: SUCCESS}:
        raise Bug("an RDMA READ completed with success when its answer began with a middle packet")
    expect("completions", found, {1: BAD_RESPONSE})
    queue.ends()


def short_response():
    """The responses to a READ have too few data, or the last one is no last one, and then a packet with its number comes."""
    half, shown = MTU // 2, []
    for what, length, responses in (
        ("the last response was too short", 3 * MTU, ((READ_FIRST, 0, MTU), (READ_MIDDLE, 1, MTU), (READ_LAST, 2, half), (READ_LAST, 2, half))),
        ("the first response was too short", 3 * MTU, ((READ_FIRST, 0, half), (READ_MIDDLE, 1, MTU), (READ_LAST, 2, MTU), (READ_LAST, 2, MTU))),
        ("the only response was a first one", MTU, ((READ_FIRST, 0, half), (ACKNOWLEDGE, 0, 0))),
    ):
        peer, queue = Peer(), Queue()
        queue.post(queue.read(1, length))
        peer.expect(READ_REQUEST, OUR_PSN)
        for opcode, number, size in responses:
            peer.answer(queue, opcode, OUR_PSN + number, data(size))
        found = queue.completions(1)
        if found == {1: SUCCESS}:
            shown.append(what)
        else:
            expect(f"completions when {what}", found, {1: BAD_RESPONSE})
            queue.ends()
    if shown:
        raise Bug(f"an RDMA READ completed with success without all of its data: {', '.join(shown)}")


def local_operation():
    """A message is sent again, and a local operation behind it was done already."""
    # 4.096 us x 2^14 = 67 ms.
    peer, queue = Peer(), Queue(timeout=14)
    window = queue.window()
    key = window.contents.rkey & ~0xFF | (window.contents.rkey + 1) & 0xFF
    queue.post(queue.send(1), queue.bind(2, window, key))
    for _ in range(2):
        peer.expect(SEND_ONLY, OUR_PSN)
    peer.answer(queue, ACKNOWLEDGE, OUR_PSN)
    found = queue.completions(2)
    if found.get(1) == FLUSHED or found.get(2, SUCCESS) not in (SUCCESS, FLUSHED):
        raise Bug(f"a memory window was bound twice, which fails: completions {found}, state {queue.state()}")
    expect("completions", found, {1: SUCCESS, 2: SUCCESS})
    expect("the state", queue.state(), RTS)
    # The window has its new key, and can be made invalid by it.
    queue.post(SendWr(3, None, None, 0, WR_LOCAL_INV, hostile.SIGNALED, key))
    expect("the completion of LOCAL_INV", queue.completions(1), {3: SUCCESS})


def shared_receive():
    """A queue pair fails when the first packet of a message has come, and its receive was taken from the shared queue."""
    peer, queue = Peer(), Queue(srq=True)
    queue.receive(9, 4096)
    peer.send(queue.number, SEND_FIRST, PEER_PSN, data(MTU), wants_ack=True)
    peer.expect(ACKNOWLEDGE, PEER_PSN)
    queue.modify(STATE, qp_state=ERR)
    # Nothing of this queue pair comes after that.
    queue.wait_for_event(LAST_WQE_REACHED)
    found = queue.completions(1, 0)
    if not found:
        raise Bug("a receive was taken from the shared queue, and never completes")
    expect("completions", found, {9: FLUSHED})


def link(state):
    subprocess.run(["ip", "link", "set", NEAR, state], check=True)
    if state == "up":
        with open(f"/sys/class/net/{FAR}/address", encoding="ascii") as mac:
            subprocess.run(["ip", "neigh", "replace", THERE, "lladdr", mac.read().strip(), "dev", NEAR, "nud", "permanent"], check=True)


def datagram():
    """A datagram is sent while the link is down."""
    peer, queue = Peer(), Queue(UD)
    link("down")
    queue.post(queue.datagram(1))
    found = queue.completions(1)
    link("up")
    if found != {1: SUCCESS}:
        raise Bug(f"a datagram that cannot be sent fails its queue pair: completions {found}, state {queue.state()}")
    expect("the state", queue.state(), RTS)
    queue.post(queue.datagram(2))
    expect("completions", queue.completions(1), {2: SUCCESS})
    peer.expect(UD_SEND_ONLY, OUR_PSN + 1)


def gsi_state():
    """The state of the queue pair of the connection manager."""
    text = subprocess.run(["rdma", "resource", "show", "qp", "link", f"{DEVICE}/1"], check=True, capture_output=True, text=True).stdout
    line, = (line for line in text.splitlines() if " type GSI " in line)
    words = line.split()
    return words[words.index("state") + 1]


def sends():
    with open(f"{SYS}/hw_counters/rdma_sends", encoding="ascii") as count:
        return int(count.read())


def gsi():
    """The connection manager has to send while the link is down, and sends again when it is up."""
    peer, before = Peer(), sends()
    channel, ident = cm.rdma_create_event_channel(), hostile.ID()
    cm.rdma_create_id(channel, byref(ident), None, hostile.PS_TCP)
    ready = select.poll()
    ready.register(c_int.from_address(channel).value, select.POLLIN)

    def resolved(wanted):
        event = POINTER(hostile.CmEvent)()
        if not ready.poll(SOON * 1000):
            raise Failed(f"event {wanted} of the connection manager does not come")
        cm.rdma_get_cm_event(channel, byref(event))
        expect("the event of the connection manager", event.contents.type, wanted)
        cm.rdma_ack_cm_event(event)

    address = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", 4711, socket.inet_aton(THERE))
    cm.rdma_resolve_addr(ident, None, ctypes.create_string_buffer(address), 2000)
    resolved(hostile.ADDR_RESOLVED)
    cm.rdma_resolve_route(ident, 2000)
    resolved(hostile.ROUTE_RESOLVED)
    link("down")
    cm.rdma_connect(ident, byref(ConnParam(None, 0, 1, 1, 0, 6, 6, 0, 4711)))
    end = time.monotonic() + 3 * SOON
    while sends() == before and gsi_state() == "RTS":
        if time.monotonic() > end:
            raise Failed("the connection manager sends nothing")
        time.sleep(0.05)
    link("up")
    # It sends again after some seconds.
    end = time.monotonic() + 6 * SOON
    while (state := gsi_state()) == "RTS" and time.monotonic() < end:
        got = peer.packet(1)
        if got and got[:2] == (UD_SEND_ONLY, 1):
            return
    if state == "ERR":
        raise Bug("the queue pair of the connection manager is in error, and stays there")
    raise Failed(f"the connection manager does not send again, the state is {state}")


def main():
    case = globals()[sys.argv[1]]
    try:
        case()
    except Bug as bug:
        print(bug)
        return 3
    except Failed as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
