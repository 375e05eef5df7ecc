# SPDX-License-Identifier: GPL-2.0
"""The handshake of keys: what both sides compute, as Documentation/protocol.rst says, and not as the module does."""
import base64
import hashlib
import hmac
import struct

from ctypes import addressof, c_uint32, string_at

LABELS = (b"proof of the server", b"messages of the client", b"messages of the server", b"tickets of requests", b"tickets of replies",
          b"data of I/O connections")


def x25519(scalar, point):
    """RFC 7748, section 5."""
    prime = 2**255 - 19
    scalar = int.from_bytes(scalar, "little") & ~7 & ~(1 << 255) | 1 << 254
    u = int.from_bytes(point, "little") % 2**255 % prime
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in range(254, -1, -1):
        swap = scalar >> bit & 1
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % prime, u * (da - cb) ** 2 % prime
        x2, z2 = a * a * b * b % prime, (a * a - b * b) * (a * a + 121665 * (a * a - b * b)) % prime
        if swap:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, prime - 2, prime) % prime).to_bytes(32, "little")


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def transcript(*parts):
    whole = hashlib.sha256(b"farblk transcript").digest()
    for part in parts:
        whole = hashlib.sha256(whole + struct.pack("<Q", len(part)) + part).digest()
    return whole


def key_of(text):
    return base64.b64decode(text.split(":")[1])[:32]


def flipped(part, bit=0):
    changed = bytearray(part)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def key_id(key):
    return mac(key, b"farblk key id")[:8]


def derived(key, secret, whole):
    """The keys of a connection, one of each label, from the common key, the result of the exchange, and the transcript."""
    root = mac(key, secret, whole)
    return [mac(root, b"farblk " + label) for label in LABELS]


def keys_of_data(base, asked, replied):
    """The keys of an I/O connection, of the client and of the server, from the tickets of its request and of its reply."""
    return mac(base, b"client", asked, replied), mac(base, b"server", asked, replied)


def tag(key, number, message):
    """The tag of a message."""
    return mac(key, struct.pack("<Q", number), message)[:16]


def end(addr, qp):
    """An end of a connection: an IPv4 address with its port, as a sockaddr_in has them, and the number of its queue pair."""
    return bytes(10) + b"\xff\xff" + addr[4:8] + addr[2:4][::-1] + struct.pack("<I", qp)


def own_end(connection):
    return end(string_at(addressof(connection.id.contents) + 32, 8), c_uint32.from_address(connection.id.contents.qp + 52).value)


def peer_end(connection):
    """That of the peer, which has no queue pair before it is connected."""
    return end(string_at(addressof(connection.id.contents) + 160, 8), getattr(connection, "peer_qp", 0))
