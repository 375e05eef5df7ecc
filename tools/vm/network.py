# SPDX-License-Identifier: GPL-2.0
"""An Ethernet that joins all guests, and what may happen to the packets on it; part of tools/vm/harness.py.

Every guest has one end of a pair of datagram sockets. While nothing is wrong with the network of two guests, these two are
connected to each other: packets do not come past here. For a fault both are connected to sockets of ours instead.
"""
import collections
import contextlib
import ctypes
import glob
import heapq
import os
import selectors
import signal
import socket
import time

# Packets for a guest that may wait here; a guest that sends more has to wait, as for a socket that
# is full.
BACKLOG = 64

# What may be wrong with a direction, each with the arguments that it takes:
#   pass       nothing; what is held is forgotten
#   cut        all packets are lost
#   hold       they are kept, even when something else is wrong later
#   release    what was kept goes on, in order, and so does what comes
#   loss=P, duplicate=P    P percent of them are lost, arrive twice
#   corrupt=P              P percent of the IP packets arrive with a bit turned over, none of the
#                          Ethernet header
#   delay=MS               they arrive after MS milliseconds or up to a fifth more, in another order
PLAIN = ("pass", "cut", "hold", "release")
WITH_VALUE = ("loss", "duplicate", "corrupt", "delay")


class Port:
    """Where a guest is plugged in."""

    def __init__(self, network, guest):
        self.network, self.guest = network, guest
        self.end, self.ours = (self.socket(network, guest, side) for side in ("guest", "relay"))
        self.out = collections.deque()  # packets that it did not take yet
        self.held_up = False  # we do not read what it sends
        self.waiting = None  # the packet at its end that it did not take yet; b"" after they were dropped
        self.deaf = 0  # fifths of a second for which it did not take that

    @staticmethod
    def socket(network, guest, side):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        s.setblocking(False)
        s.bind(f"\0farblk-{os.getpid()}-{network.number}-{guest.number}-{side}")
        return s

    def ready(self, _):
        """Sends what waits for the guest, takes what comes from it."""
        self.flush()
        for _ in range(BACKLOG):
            if self.held_up:
                break
            try:
                frame = self.ours.recv(65536)
            except OSError:
                break
            self.network.switch(self, frame)
        self.watch()

    def deliver(self, frame):
        self.out.append(frame)
        if len(self.out) == 1:
            self.flush()
            self.watch()

    def flush(self):
        try:
            while self.out:
                self.ours.send(self.out[0])
                self.out.popleft()
        except OSError:
            pass

    def watch(self):
        """Has us called when there is something to do."""
        events = (0 if self.held_up else selectors.EVENT_READ) | (selectors.EVENT_WRITE if self.out else 0)
        selector, known = self.network.selector, self.ours in self.network.selector.get_map()
        if not self.network.relayed or not events:
            if known:
                selector.unregister(self.ours)
        elif not known:
            selector.register(self.ours, events, (self.ready, None))
        elif selector.get_key(self.ours).events != events:
            selector.modify(self.ours, events, (self.ready, None))


def join(sock, peer):
    """Connects a socket to another one, which must be connected to none or to this one, or to none."""
    if peer:
        sock.connect(peer.getsockname())
    else:
        ctypes.CDLL(None).connect(sock.fileno(), bytes(16), 16)  # AF_UNSPEC


def waits(sock):
    """Whether something waits in a socket."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False


def drain(sock):
    """What waits in a socket."""
    frames = []
    try:
        while True:
            frames.append(sock.recv(65536, socket.MSG_DONTWAIT))
    except OSError:
        return frames


class Network:
    def __init__(self, number, guests, selector, rng):
        self.number, self.selector, self.rng = number, selector, rng
        self.ports = {guest.number: Port(self, guest) for guest in guests}
        self.faults = {}  # by direction (from, to): (fault, value)
        self.held = {}  # by direction: packets
        self.later = []  # heap of (when, count, port, packet)
        self.count = 0
        self.lost = {}  # by direction: packets that a fault took
        self.relayed = len(self.ports) > 2
        self.next_try = 0  # to do without the relay
        self.closing = None  # until when we try that: nothing more is taken from the guests meanwhile
        for port in self.ports.values():
            join(port.ours, port.end)
        self.plug()

    def plug(self):
        """Connects the ends of the guests to where their packets go."""
        for port in self.ports.values():
            join(port.end, None)
        for port in self.ports.values():
            join(port.end, port.ours if self.relayed else self.other(port).end)
            port.watch()

    def other(self, port):
        return next(p for p in self.ports.values() if p is not port)

    def switch(self, port, frame):
        """A packet from there."""
        # The last byte of a guest's address is its number.
        to = self.ports.get(frame[5]) if frame[0] & 1 == 0 else None
        for target in [to] if to else [p for p in self.ports.values() if p is not port]:
            self.carry(port, target, frame)
            if len(target.out) >= BACKLOG:
                port.held_up = True

    def carry(self, source, target, frame):
        way = source.guest.number, target.guest.number
        fault, value = self.faults.get(way, ("pass", 0))
        if fault == "hold":
            self.held.setdefault(way, []).append(frame)
        elif fault == "cut" or fault == "loss" and self.rng.random() < value / 100:
            self.lost[way] = self.lost.get(way, 0) + 1
        elif fault == "delay":
            self.count += 1
            when = time.monotonic() + value / 1000 * (1 + self.rng.random() / 5)
            heapq.heappush(self.later, (when, self.count, target.guest.number, frame))
        else:
            if fault == "duplicate" and self.rng.random() < value / 100:
                target.deliver(frame)
            # Nothing protects ARP, and who believes in a wrong address is deaf for minutes.
            if fault == "corrupt" and frame[12:14] in (b"\x08\x00", b"\x86\xdd") and self.rng.random() < value / 100:
                bit = self.rng.randrange(14 * 8, len(frame) * 8)
                frame = bytearray(frame)
                frame[bit // 8] ^= 1 << bit % 8
            target.deliver(bytes(frame))

    def fault(self, ways, fault, value):
        """From now on that is wrong with these directions."""
        self.close(False)
        if fault != "pass":
            self.relay(True)
        for way in ways:
            held = self.held.pop(way, []) if fault in ("pass", "release") else []
            self.faults[way] = (fault, value)
            if fault in ("pass", "release"):
                del self.faults[way]
            if fault == "release":
                for frame in held:
                    self.ports[way[1]].deliver(frame)

    def held_on(self, ways):
        """Packets that are held there."""
        return sum(len(self.held.get(way, [])) for way in ways)

    def lost_on(self, ways):
        """Packets that a fault took there, ever."""
        return sum(self.lost.get(way, 0) for way in ways)

    def tick(self):
        """Delivers what is due; the seconds until there is more to do, or None."""
        if not self.relayed:
            return None
        now = time.monotonic()
        while self.later and self.later[0][0] <= now:
            _, _, number, frame = heapq.heappop(self.later)
            self.ports[number].deliver(frame)
        if self.closing is not None:
            quiet = not any(port.out or waits(port.end) for port in self.ports.values())
            if quiet or now >= self.closing:
                self.close(False)
                self.next_try = now + 1
                if quiet:
                    self.relay(False)
            return 0.001
        for port in self.ports.values():
            if port.held_up and all(len(p.out) < BACKLOG // 2 for p in self.ports.values()):
                port.held_up = False
                port.ready(None)
        wake = self.later[0][0] if self.later else None
        if len(self.ports) == 2 and not self.faults and not self.later and not any(self.held.values()):
            if now >= self.next_try:
                self.closing = now + 0.5
                self.close(True)
                return 0
            wake = self.next_try
        return None if wake is None else max(0, wake - now)

    def close(self, on):
        """Takes no more packets from the guests, or does so again."""
        if not on:
            self.closing = None
        for port in self.ports.values():
            port.held_up = on
            port.watch()

    def relay(self, on):
        """Lets packets come past here, or no longer."""
        if on == self.relayed:
            return
        # A socket that is connected anew forgets what waits in it.
        with self.frozen():
            waiting = {port: drain(port.end) for port in self.ports.values()}
            if not on:
                # Nothing else waits: what a guest has sent and we did not take fits into its socket
                # again.
                waiting = {port: drain(self.other(port).ours) for port in self.ports.values()}
            self.relayed = on
            self.plug()
            for port, frames in waiting.items():
                for frame in frames:
                    if on:
                        port.deliver(frame)
                    else:
                        self.other(port).end.send(frame)

    @contextlib.contextmanager
    def frozen(self):
        """No guest does anything meanwhile."""
        stopped = [port.guest for port in self.ports.values() if port.guest.alive() and not port.guest.frozen]
        for guest in stopped:
            guest.proc.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 1
        while not all(has_stopped(guest.proc.pid) for guest in stopped) and time.monotonic() < until:
            pass
        try:
            yield
        finally:
            for guest in stopped:
                guest.proc.send_signal(signal.SIGCONT)

    def drop_what_nobody_takes(self):
        """A machine that is off or frozen, or whose link is down, loses packets: it does not hold up those who send.

        Called each fifth of a second. A busy machine may let a packet wait for a while, and rxe does not stand losses."""
        for port in self.ports.values():
            try:
                packet = port.end.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except OSError:
                packet = None
            if packet and packet == port.waiting:
                port.deaf += 1
            else:
                port.deaf = 24 if port.waiting == b"" else 0
            port.waiting = packet
            if port.deaf >= 25 or port.guest.frozen or not port.guest.alive():
                port.waiting = b""
                port.out.clear()
                drain(port.end)


def has_stopped(pid):
    for stat in glob.glob(f"/proc/{pid}/task/*/stat"):
        try:
            with open(stat, encoding="ascii", errors="replace") as f:
                if f.read().rpartition(")")[2].split()[0] not in "TtZX":
                    return False
        except OSError:
            pass
    return True
