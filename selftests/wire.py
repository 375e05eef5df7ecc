# SPDX-License-Identifier: GPL-2.0
"""Looks at what RoCE packets carry: wire.py NETDEV TEXT STOP.

Until the file STOP is there it takes the packets that go and come, and prints a line at its end:

  sent BYTES COUNT received BYTES COUNT repeated COUNT

BYTES are those that large packets carry, COUNT the packets which have TEXT in them, and, of pieces of 16 bytes within large packets,
those which another packet had before: what is sealed twice, even if it is the same, has none of them. Prints "ready" when it listens.
"""
import os
import select
import socket
import struct
import sys

ROCE_PORT, UDP = 4791, 17
OUTGOING = 4
SOL_PACKET, PACKET_STATISTICS = 263, 6
# Packets that have more than this carry data. Up to HEADERS there may be headers, and at the end
# there is a checksum.
LARGE, HEADERS, TAIL = 512, 64, 24


def carried(packet):
    """What a RoCE packet has from its first header on; None if it is none."""
    if len(packet) < 34 or packet[12:14] != b"\x08\x00" or packet[23] != UDP:
        return None
    at = 14 + 4 * (packet[14] & 15)
    if len(packet) < at + 20 or struct.unpack_from(">H", packet, at + 2) != (ROCE_PORT,):
        return None
    length, = struct.unpack_from(">H", packet, at + 4)
    return packet[at + 8 : at + length]


def main(netdev, text, stop):
    text = text.encode()
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    # SO_RCVBUFFORCE.
    listener.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
    listener.bind((netdev, 0))
    listener.setblocking(False)
    print("ready", flush=True)
    packets = []
    while True:
        stopping = os.path.exists(stop)
        ready = select.select([listener], [], [], 0.1)[0]
        while ready:
            try:
                packet, (_, _, kind, *_) = listener.recvfrom(65536)
            except BlockingIOError:
                break
            packet = carried(packet)
            if packet is not None:
                packets.append((kind == OUTGOING, packet))
        if stopping and not ready:
            break
    _, lost = struct.unpack("II", listener.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    if lost:
        print(f"{lost} packets were lost")
        return 1
    count, found, seen, repeated = {True: 0, False: 0}, {True: 0, False: 0}, {}, 0
    for outgoing, packet in packets:
        found[outgoing] += text in packet
        if len(packet) <= LARGE:
            continue
        count[outgoing] += len(packet)
        # The number of the queue pair and that of the packet: the same packet may be sent again.
        which = packet[5:8] + packet[9:12]
        for at in range(HEADERS, len(packet) - TAIL, 64):
            repeated += seen.setdefault(packet[at : at + 16], which) != which
    print(f"sent {count[True]} {found[True]} received {count[False]} {found[False]} repeated {repeated}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
