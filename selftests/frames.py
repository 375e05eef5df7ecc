#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The frames of protected I/O connections, as Documentation/protocol.rst describes them.

Python's own library has neither ChaCha20-Poly1305 nor CRC32C, so both are here. Run as a program, this computes the vectors of
RFC 8439 and RFC 3720, and exits with 1 if one of them is wrong.
"""
import hmac
import struct
import sys
from array import array

NONE, CRC32C, SEAL = range(3)
# Bytes of the number and of the check, which are before the body.
NUMBER, CHECK = 8, 16
HEAD = NUMBER + CHECK
# The data check of a body that needs none.
NO_CHECK = bytes(CHECK)
# Set in a number where it stands for data in remote memory.
REMOTE = 1 << 63


class Forged(Exception):
    """A check is wrong."""


# --- ChaCha20-Poly1305 ----------------------------------------------------------------------------

# Word i of all blocks is one integer: that of block n is in its bits from 64 * n on. Above its 32
# bits there is room for what a sum carries and for what a rotation moves out.
ROUNDS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def chacha20(key, nonce, first, count):
    """The key stream of `count` blocks, the first of which has the number `first`."""
    ones = int.from_bytes(struct.pack("<Q", 1) * count, "little")
    mask = 0xFFFFFFFF * ones
    words = [word * ones for word in struct.unpack("<16I", b"expand 32-byte k" + key + bytes(4) + nonce)]
    words[12] = int.from_bytes(struct.pack(f"<{count}Q", *range(first, first + count)), "little")
    state = words.copy()
    for a, b, c, d in ROUNDS * 10:
        va, vb, vc, vd = state[a], state[b], state[c], state[d]
        va = va + vb & mask
        vd ^= va
        vd = (vd << 16 | vd >> 16) & mask
        vc = vc + vd & mask
        vb ^= vc
        vb = (vb << 12 | vb >> 20) & mask
        va = va + vb & mask
        vd ^= va
        vd = (vd << 8 | vd >> 24) & mask
        vc = vc + vd & mask
        vb ^= vc
        vb = (vb << 7 | vb >> 25) & mask
        state[a], state[b], state[c], state[d] = va, vb, vc, vd
    stream = array("I", bytes(64 * count))
    for index, (one, other) in enumerate(zip(state, words)):
        wide = array("I", (one + other & mask).to_bytes(8 * count, "little"))
        stream[index::16] = wide[::2]
    return stream.tobytes()


def xor(one, other):
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


def poly1305(key, message):
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total, prime = 0, (1 << 130) - 5
    for at in range(0, len(message), 16):
        total = (total + int.from_bytes(message[at : at + 16] + b"\x01", "little")) * r % prime
    return (total + int.from_bytes(key[16:], "little") & (1 << 128) - 1).to_bytes(16, "little")


def tag_of(first_block, ciphertext, associated):
    def padded(part):
        return part + bytes(-len(part) % 16)

    return poly1305(first_block[:32], padded(associated) + padded(ciphertext) + struct.pack("<QQ", len(associated), len(ciphertext)))


def seal(key, nonce, data, associated=b""):
    """The ciphertext, and the tag."""
    stream = chacha20(key, nonce, 0, 1 + -(-len(data) // 64))
    ciphertext = xor(data, stream[64 : 64 + len(data)])
    return ciphertext, tag_of(stream[:64], ciphertext, associated)


def unseal(key, nonce, ciphertext, tag, associated=b""):
    """The data; it raises Forged if the tag is not theirs."""
    stream = chacha20(key, nonce, 0, 1 + -(-len(ciphertext) // 64))
    if not hmac.compare_digest(tag, tag_of(stream[:64], ciphertext, associated)):
        raise Forged("the tag is wrong")
    return xor(ciphertext, stream[64 : 64 + len(ciphertext)])


# --- CRC32C ---------------------------------------------------------------------------------------


def crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
        yield byte


CRC_TABLE = tuple(crc_table())


def crc32c(*parts):
    table, crc = CRC_TABLE, 0xFFFFFFFF
    for part in parts:
        for byte in part:
            crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# --- frames ---------------------------------------------------------------------------------------


def nonce_of(number):
    return struct.pack("<4xQ", number)


def digest(number, *parts):
    """The check with CRC32C."""
    return struct.pack("<I12x", crc32c(struct.pack("<Q", number), *parts))


class Direction:
    """What goes one way on a connection: `key` is that of its sender, with SEAL."""

    def __init__(self, protection, key=None):
        self.protection, self.key, self.last = protection, key, 0

    def next(self):
        """A number that was not used yet."""
        self.last += 1
        return self.last

    def frame(self, body, number=None):
        """The frame of a body, with the next number unless told which."""
        number = self.next() if number is None else number
        body, check = self.closed(number, body)
        return struct.pack("<Q", number) + check + body

    def body(self, frame):
        """The number and the body of a frame; it raises Forged if the check is not theirs."""
        if len(frame) < HEAD:
            raise Forged("this is too short for a frame")
        number, = struct.unpack_from("<Q", frame)
        return number, self.opened(number, frame[HEAD:], frame[NUMBER:HEAD])

    def data(self, number, command, data):
        """The data as they are in remote memory, and their check, for the frame with this number."""
        if self.protection == CRC32C:
            return data, digest(number | REMOTE, command, data)
        return seal(self.key, nonce_of(number | REMOTE), data, command)

    def plain(self, number, command, data, check):
        """The data of what is in remote memory; it raises Forged if the check is not theirs."""
        if self.protection == CRC32C:
            if check != digest(number | REMOTE, command, data):
                raise Forged("the check of the data is wrong")
            return data
        return unseal(self.key, nonce_of(number | REMOTE), data, check, command)

    def closed(self, number, body):
        if self.protection == CRC32C:
            return body, digest(number, body)
        return seal(self.key, nonce_of(number), body)

    def opened(self, number, body, check):
        if self.protection == CRC32C:
            if check != digest(number, body):
                raise Forged("the check is wrong")
            return body
        return unseal(self.key, nonce_of(number), body, check)


# --- vectors --------------------------------------------------------------------------------------

SUNSCREEN = (b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.")


def vectors():
    """Yields what each vector gives, and what it has to."""
    ordered = bytes(range(32))
    # RFC 8439, 2.3.2 and 2.4.2.
    yield (chacha20(ordered, bytes.fromhex("000000090000004a00000000"), 1, 1),
           "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4ed2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e")
    yield (xor(SUNSCREEN, chacha20(ordered, bytes.fromhex("000000000000004a00000000"), 1, 2)[: len(SUNSCREEN)]),
           "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0bf91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8"
           "07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab77937365af90bbf74a35be6b40b8eedf2785e42874d")
    # RFC 8439, 2.5.2.
    yield (poly1305(bytes.fromhex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b"), b"Cryptographic Forum Research Group"),
           "a8061dc1305136c6c22b8baf0c0127a9")
    # RFC 8439, 2.8.2.
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    associated = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    ciphertext, tag = seal(key, nonce, SUNSCREEN, associated)
    yield (ciphertext,
           "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
           "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9de576d26586cec64b6116")
    yield tag, "1ae10b594f09e26a7e902ecbd0600691"
    yield unseal(key, nonce, ciphertext, tag, associated), SUNSCREEN.hex()
    # RFC 8439, A.5.
    yield (unseal(bytes.fromhex("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0"), bytes.fromhex("000000000102030405060708"),
                  bytes.fromhex("64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f355894cf"
                                "332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c8559797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4"
                                "b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a"
                                "0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29"
                                "a6ad5cb4022b02709b"),
                  bytes.fromhex("eead9d67890cbb22392336fea1851f38"), bytes.fromhex("f33388860000000000004e91"))[:16],
           b"Internet-Drafts ".hex())
    # RFC 3720, B.4.
    for data, crc in (bytes(32), "8a9136aa"), (b"\xff" * 32, "62a8ab43"), (ordered, "46dd794e"), (ordered[::-1], "113fdb5c"), (b"123456789", "e3069283"):
        yield struct.pack(">I", crc32c(data)), crc
    # Blocks whose counter has more than a byte, and all at once as one by one.
    yield chacha20(key, nonce, 250, 300), b"".join(chacha20(key, nonce, 250 + block, 1) for block in range(300)).hex()
    # A frame, and the same with a bit changed, of either kind.
    for protection in CRC32C, SEAL:
        there = Direction(protection, key)
        frame = there.frame(b"body")
        yield there.body(frame)[1], b"body".hex()
        for bit in range(8 * len(frame)):
            changed = bytearray(frame)
            changed[bit // 8] ^= 1 << bit % 8
            try:
                there.body(bytes(changed))
                yield b"is taken", "is not"
            except Forged:
                pass


def main():
    count = 0
    for have, want in vectors():
        count += 1
        if have.hex() != want:
            print(f"FAILED: vector {count} gives {have.hex()}, not {want}")
            return 1
    print(f"{count} vectors are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
