#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A client that has a key, and means harm or has somebody harmful in between: hostile_keys.py SERVER GROUP

Does the cases of a group as hostile.py does its own, and counts what the server has to count as forgeries. KEY and OTHER are the keys of the
hosts "hostile" and "other" at the exports "e" and "o". What is computed here is an implementation of its own of what
Documentation/protocol.rst says of keys.
"""
import sys

sys.dont_write_bytecode = True

import os
import struct

from handshake import derived, flipped, key_id, key_of, mac, own_end, peer_end, tag, transcript, x25519
from hostile import (
    AUTH_FAILED, AUTH_REQUIRED, BAD_SESSION, BAD_STATE, CHALLENGE, CONTROL, GRANT, IO, LIST, LOGOUT, MALFORMED, OK, PING, PONG, REPLY, Connection,
    Ended, Failed, Refused, Session, ask, case, cases, expect, exports, login, main, message, refused, request, works)

KEY, OTHER = key_of(os.environ["KEY"]), key_of(os.environ["OTHER"])


def ends(connection):
    return own_end(connection), peer_end(connection)


class Keyed:
    """A control connection whose messages have tags. What `lies` changes is not what the server has seen, or said."""

    CONNECTION = Connection

    def __init__(self, key=KEY, point=None, **lies):
        self.control = Connection(request())
        self.sent = self.read = 0
        scalar, nonce = os.urandom(32), os.urandom(32)
        self.challenge = message(CHALLENGE, struct.pack("<H6x8s32s32s", 1, key_id(key), nonce,
                                                        point or x25519(scalar, (9).to_bytes(32, "little"))))
        self.control.send(self.challenge)
        self.answer, _ = self.control.receive()
        _, _, _, code = struct.unpack_from("<HHIH", self.answer)
        if code:
            raise Refused(code)
        suite, = struct.unpack_from("<H", self.answer, 112)
        expect("length and suite of the reply", (len(self.answer), suite), (200, 1))
        client, server = ends(self.control)
        said = {"request": self.control.private, "reply": self.control.reply, "client": client, "server": server, "challenge": self.challenge,
                "answer": self.answer[:-16]}
        for part, lie in lies.items():
            said[part] = lie(said[part])
        secret = x25519(scalar, self.answer[152:184])
        proof, self.client, self.server, self.asks, self.replies, self.data = derived(key, secret, transcript(*said.values()))
        self.proven = mac(proof)[:16] == self.answer[-16:]

    def tagged(self, asked, number=None):
        """The message with its tag."""
        if number is None:
            number, self.sent = self.sent, self.sent + 1
        return asked + tag(self.client, number, asked)

    def receive(self):
        whole, _ = self.control.receive()
        said = whole[:-16]
        expect("the tag", whole[-16:], tag(self.server, self.read, said))
        self.read += 1
        return said

    def ask(self, asked):
        self.control.send(self.tagged(asked))
        reply = self.receive()
        kind, _, _, code = struct.unpack_from("<HHIH", reply)
        expect("the kind of the reply", kind, struct.unpack_from("<H", asked)[0] | REPLY)
        return code, reply

    def login(self, export=b"e", **wanted):
        code, reply = self.ask(login(export, **wanted))
        if code:
            raise Refused(code)
        self.id, = struct.unpack_from("<Q", reply, 112)
        self.reply = reply
        return self

    def ticket(self, connection, private):
        return mac(self.asks, private, *ends(connection))[:16]

    def io(self, queue=0, epoch=1, ticket=None, **options):
        """An I/O connection, with another ticket than its own if there is one, or one that `ticket` makes of it."""

        def private(connection):
            rest = request(IO, queue, self.id, epoch=epoch)[:32]
            own = self.ticket(connection, rest)
            return rest + (own if ticket is None else ticket(own, connection) if callable(ticket) else ticket)

        io = self.CONNECTION(private, **options)
        expect("the ticket of the reply", io.reply[8:], mac(self.replies, io.private[32:], io.reply[:8], *ends(io))[:16])
        return io

    def lost(self, asked):
        """The server takes none of this, and ends the connection."""
        self.control.send(asked)
        self.control.must_end()


def names(listed):
    return [listed[at : at + 64].rstrip(b"\0") for at in range(128, len(listed), 96)]


# --- cases ----------------------------------------------------------------------------------------


@case("keys", "a client that keeps to the protocol")
def keys_good():
    session = Keyed()
    expect("whether the server has proved the key", session.proven, True)
    session.control.send(session.tagged(message(PING)))
    expect("the answer to a ping", struct.unpack_from("<H", session.receive()), (PONG,))
    session.login()
    ios = [session.io(queue) for queue in range(2)]
    for io in ios:
        works(io)
    expect("the status of the logout", session.ask(message(LOGOUT))[0], OK)
    for io in ios:
        io.must_end()


# Somebody in between has changed one bit, or lets it through to another connection than this one. A
# short test has one bit of each part: the host tests have any (any_bit_counts).
BITS = slice(-1, None) if os.environ.get("FARBLK_SHORT") else slice(None)


@cases("keys", 1, *((f"another {part}: bit {bit} of {words}", part, bit) for part, words, bits in (
    ("request", "the connection request", (0, 32, 128, 255, 383)), ("reply", "the connection reply", (0, 32, 191)),
    ("client", "the client's end", (96, 127, 128, 144)), ("server", "the server's end", (96, 128, 144)),
    ("challenge", "the challenge", (32, 64, 128, 255, 256, 447, 448, 702)), ("answer", "the answer", (32, 896, 960, 1215, 1216, 1471))) for bit in bits[BITS]))
def keys_flipped(part, bit):
    session = Keyed(**{part: lambda said: flipped(said, bit)})
    expect("whether the server has proved the key", session.proven, False)
    session.lost(session.tagged(login()))


@cases("keys", 1,
       ("a login without a tag", lambda s: login()),
       ("a tag that is cut", lambda s: s.tagged(login())[:-1]),
       ("a tag with one bit changed", lambda s: flipped(s.tagged(login()), 8 * 224 + 127)),
       ("a message with one bit changed", lambda s: flipped(s.tagged(login()), 8 * 100)),
       ("less than a tag", lambda s: message(PING)),
       ("the tag of a later message", lambda s: s.tagged(login(), 1)),
       ("the server's own message", lambda s: s.answer))
def keys_forged(make):
    session = Keyed()
    session.lost(make(session))


@case("keys", "a message twice", 1)
def keys_twice():
    session = Keyed().login()
    ping = session.tagged(message(PING))
    session.control.send(ping)
    session.receive()
    session.lost(ping)


@case("keys", "what the server has said is said to it", 1)
def keys_reflected():
    session = Keyed()
    session.control.send(session.tagged(message(PING)))
    whole, _ = session.control.receive()
    session.lost(whole)


@case("keys", "a login of an earlier connection", 2)
def keys_replayed():
    for epoch in 1, 2:
        past = Keyed()
        taken = past.tagged(login(epoch=epoch))
        past.control.close()
        Keyed().lost(taken)


@cases("keys", 0, *((f"point {number} of low order", point) for number, point in enumerate((
    bytes(32), (1).to_bytes(32, "little"), bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"), (2**255 - 18).to_bytes(32, "little"), (2**256 - 20).to_bytes(32, "little")))))
def keys_weak(point):
    refused(MALFORMED, Keyed, point=point)


@cases("keys", 0,
       ("no suite", struct.pack("<H", 0)), ("suites that are not known", struct.pack("<H", 0xFFFE)))
def keys_suite(suites):
    control = Connection(request())
    control.send(message(CHALLENGE, suites + os.urandom(78)))
    reply, _ = control.receive()
    expect("the status", struct.unpack_from("<HHIH", reply), (CHALLENGE | REPLY, 112, 7, MALFORMED))
    # It has proved nothing, and cannot do so any more.
    control.send(message(CHALLENGE, struct.pack("<H", 1) + os.urandom(78)))
    expect("the status", struct.unpack_from("<HHIH", control.receive()[0])[3], BAD_STATE)
    control.send(login())
    expect("the status of the login", struct.unpack_from("<HHIH", control.receive()[0])[3], AUTH_REQUIRED)


@case("keys", "a challenge that comes late, or again")
def keys_late():
    control = Connection(request())
    control.send(exports())
    control.receive()
    control.send(Keyed().challenge)
    expect("the status", struct.unpack_from("<HHIH", control.receive()[0])[3], BAD_STATE)
    session = Keyed()
    expect("the status", session.ask(session.challenge)[0], BAD_STATE)
    works(session.login().io())
    expect("the status", session.ask(session.challenge)[0], BAD_STATE)


@case("keys", "a key that nobody has is answered like one that it does not have", 1)
def keys_unknown():
    session = Keyed(os.urandom(32))
    expect("whether the server has proved the key", session.proven, False)
    session.lost(session.tagged(login()))


@case("keys", "the key of another host, or of an export that does not admit this one")
def keys_others():
    for key, host, export in ((OTHER, b"hostile", b"e"), (KEY, b"other", b"o"), (KEY, b"hostile", b"o"), (KEY, b"hostile", b"nothing"),
                              (KEY, b"nobody", b"e")):
        session = Keyed(key)
        expect("whether the server has proved the key", session.proven, True)
        refused(AUTH_FAILED, session.login, export, host=host)
        # Without a session there is nothing to do it harm with.
        expect("the status of a grant", session.ask(message(GRANT, struct.pack("<II", 0, 1)))[0], BAD_STATE)


@case("keys", "without a key there is nothing to see")
def keys_none():
    said = set()
    for export in b"e", b"o", b"nothing":
        control = Connection(request())
        control.send(login(export))
        reply, _ = control.receive()
        said.add(reply)
        expect("the status", struct.unpack_from("<HHIH", reply)[3], AUTH_REQUIRED)
        control.send(exports())
        expect("what there is", names(control.receive()[0]), [b"open"])
    expect("the number of different answers", len(said), 1)
    expect("what there is with a key", names(Keyed().ask(exports())[1]), [b"e", b"open"])
    # Here everybody may, under every name.
    works(Session(b"open").io())


@cases("keys", 1,
       ("no ticket", bytes(16)), ("a ticket of random bytes", os.urandom(16)), ("a ticket with one bit changed", lambda own, _: flipped(own, 127)))
def keys_no_ticket(ticket):
    session = Keyed().login()
    refused(BAD_SESSION, session.io, ticket=ticket)
    works(session.io())


@cases("keys", 1, ("another queue", {"queue": 1}), ("another epoch", {"epoch": 2}))
def keys_other_ticket(other):
    session = Keyed().login()
    refused(BAD_SESSION, session.io, ticket=lambda _, io: session.ticket(io, request(IO, **{"queue": 0, "session": session.id, "epoch": 1, **other})[:32]))
    works(session.io())


@case("keys", "the ticket of a queue pair that is not made, for another one", 2)
def keys_moved_ticket():
    session, taken = Keyed().login(), []
    # It is only to be seen.
    refused(BAD_SESSION, session.io, ticket=lambda own, _: taken.append(own) or bytes(16))
    refused(BAD_SESSION, session.io, ticket=taken[0])
    works(session.io())


@case("keys", "the ticket of a connection again, on another one", 1)
def keys_ticket_again():
    session, taken = Keyed().login(), []
    io = session.io(ticket=lambda own, _: taken.append(own) or own)
    refused(BAD_SESSION, session.io, ticket=taken[0])
    works(io)


@case("keys", "the ticket of another session, and its own for a path that is over", 3)
def keys_other_session():
    session, other = Keyed().login(), Keyed().login()
    refused(BAD_SESSION, session.io, ticket=lambda own, io: other.ticket(io, request(IO, 0, session.id)[:32]))
    # Its keys, but the number of another session.
    number, session.id = session.id, other.id
    refused(BAD_SESSION, session.io)
    session.id = number
    refused(BAD_SESSION, session.io, epoch=2)
    works(session.io())
    works(other.io())


@case("keys", "an I/O connection of a session without a key, of another epoch", 1)
def keys_epoch():
    session = Session(b"open")
    refused(BAD_SESSION, Connection, request(IO, 0, session.id, epoch=2))
    works(session.io())


if __name__ == "__main__":
    main(*sys.argv[1:])
