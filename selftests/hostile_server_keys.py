#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A server that has a key, or not, and means harm: hostile_server_keys.py ADDRESS SECOND GROUP

Does the cases of the group "keys" as hostile_server.py does its own. Each map has a key: KEY is its text. What the server says of keys is
computed as handshake.py does it.
"""
import sys

sys.dont_write_bytecode = True

import os
import struct

from handshake import derived, flipped, key_id, key_of, mac, own_end, peer_end, tag, transcript, x25519
from hostile import CHALLENGE, CONTROL, IO, LOGIN, PONG, Failed, expect
from hostile_server import (
    NOT_FARBLK, SIZE, Peer, Server, case, cases, event, extent, hangs_up, main, refused, rejection, reply, silent)

TEXT = os.environ["KEY"]
NOT_ADMITTED, EVICTED = 5, 14
NO_PROOF = "EKEYREJECTED the server did not prove that it has the key$"
SPOILT = "EKEYREJECTED a message of the server was changed on its way$"
BASE = (9).to_bytes(32, "little")


class KeyedPeer(Peer):
    """Its messages have tags once the server has proved the key, and the reply to an I/O connection has a ticket."""

    keys, said, heard = None, 0, 0

    def reply(self):
        honest = super().reply()
        if self.kind != IO:
            return honest
        _, _, _, asks, replies, _ = self.server.keys[self.session]
        client, server = peer_end(self), own_end(self)
        # When it was asked for, nobody knew the queue pair of this end.
        expect("the ticket of the request", self.private[32:48], mac(asks, self.private[:32], client, server[:-4] + bytes(4))[:16])
        return honest[:8] + self.server.lie("ticket", mac(replies, self.private[32:48], honest[:8], client, server)[:16])

    def tagged(self, message):
        if self.keys is None:
            return message
        number, self.said = self.said, self.said + 1
        return self.server.lie("message", message + tag(self.keys[2], number, message))


class KeyedServer(Server):
    """A server that has a key. What there is a lie for is said as that makes it of the truth."""

    PEER = KeyedPeer

    def __init__(self, *arguments, key=key_of(TEXT), lies=None, **fields):
        # Those of each session. Requests that came without a tag, though each map has a key.
        self.key, self.lies, self.keys, self.trusting = key, lies or {}, {}, 0
        super().__init__(*arguments, **fields)

    def lie(self, what, truth):
        return self.lies[what](truth) if what in self.lies else truth

    def handle(self, peer, message):
        kind, sequence = struct.unpack_from("<H2xI", message)
        if peer.kind == CONTROL and peer.keys:
            message, its = message[:-16], message[-16:]
            expect("the tag of the client", its, tag(peer.keys[1], peer.heard, message))
            peer.heard += 1
        elif peer.kind == CONTROL and kind == CHALLENGE:
            if not self.hook("challenge", peer, message):
                self.prove(peer, sequence, message)
            return
        elif peer.kind == CONTROL:
            self.trusting += 1
        if kind == LOGIN and peer.kind == CONTROL:
            self.keys[self.sessions + 1] = peer.keys
        super().handle(peer, message)

    def prove(self, peer, sequence, challenge):
        expect("the key id", challenge[16:24], key_id(key_of(TEXT)))
        scalar = os.urandom(32)
        body = struct.pack("<H6x32s32s16x", self.lie("suite", 1), os.urandom(32), self.lie("point", x25519(scalar, BASE)))
        answer = reply(CHALLENGE, sequence, body)[:-16]
        said = transcript(peer.private[:48], Peer.reply(peer), peer_end(peer), own_end(peer), challenge, answer)
        keys = derived(self.key, x25519(scalar, challenge[56:88]), said)
        peer.send(self.lie("answer", answer + mac(keys[0])[:16]))
        peer.keys = keys

    def mapped(self, begin, **settings):
        """A map that is up, and works."""
        m = begin.map(key=TEXT, no_path_timeout_ms=30000, **settings).on()
        m.works(self)
        return m

    def cut(self, m):
        """The control connection of the map ends."""
        with self.lock:
            self.control().disconnect()
        m.soon(lambda: show_state(m) != "live", "the map does not notice")


def show_state(m):
    with open(m.at + "paths/a/state", encoding="ascii") as file:
        return file.read().strip()


def times(count, function):
    """A hook that breaks the protocol so often."""
    done = []

    def hook(*arguments):
        done.append(1)
        return len(done) <= count and function(*arguments) is not False

    return hook


def served(begin, *arguments, **fields):
    begin.servers.append(KeyedServer(*arguments, **fields))
    return begin.servers[-1]


@case("keys", "a server that keeps to the protocol")
def keys_good(begin):
    server = served(begin)
    m = server.mapped(begin)
    server.cut(m)
    m.works(server)
    expect("requests without a tag", server.trusting, 0)


# No login is sent to who has not proved the key, and no I/O connection is made.
@cases("keys",
       ("a proof with one bit changed", {"answer": lambda whole: flipped(whole, 8 * 184)}, NO_PROOF),
       ("another proof", {"answer": lambda whole: whole[:-16] + os.urandom(16)}, NO_PROOF),
       ("a proof of zeroes", {"answer": lambda whole: whole[:-16] + bytes(16)}, NO_PROOF),
       ("a nonce that is not the one that is proved", {"answer": lambda whole: flipped(whole, 8 * 120)}, NO_PROOF),
       ("a point that is not the one that is proved", {"answer": lambda whole: flipped(whole, 8 * 152)}, NO_PROOF),
       ("a point of low order", {"point": lambda _: bytes(32)}, NO_PROOF),
       ("another point of low order", {"point": lambda _: (1).to_bytes(32, "little")}, NO_PROOF),
       ("no suite", {"suite": lambda _: 0}, "EPROTO malformed reply"),
       ("two suites", {"suite": lambda _: 3}, "EPROTO malformed reply"),
       ("a suite that was not offered", {"suite": lambda _: 2}, "EPROTO malformed reply"),
       ("no proof", {"answer": lambda whole: whole[:-16]}, "EPROTO malformed reply"),
       ("one byte too many", {"answer": lambda whole: whole + b"x"}, "EPROTO malformed reply"),
       ("no byte", {"answer": lambda _: b""}, "EPROTO"),
       ("a pong before it", {"answer": lambda _: event(PONG)}, "EPROTO malformed event"),
       ("an extent before it", {"answer": lambda _: extent(number=1)}, "EPROTO malformed event"))
def keys_unproven(begin, lies, pattern):
    server = served(begin, lies=lies)
    text = refused(begin, server, pattern, key=TEXT)
    expect("logins and other requests without a proof", (len(server.logins), server.trusting), (0, 0))
    return text


@case("keys", "another key")
def keys_other(begin):
    server = served(begin, key=os.urandom(32))
    text = refused(begin, server, NO_PROOF, key=TEXT)
    expect("logins", len(server.logins), 0)
    return text


@cases("keys",
       ("no answer to the challenge", silent, "ETIMEDOUT (the server does not answer|no answer)"),
       ("the end instead of an answer", hangs_up, "E[A-Z]+ ."),
       ("the challenge itself", lambda _, peer, message: peer.send(message) or True, "EPROTO"),
       ("a grant without a proof", lambda _, peer, message: peer.send(reply(CHALLENGE, struct.unpack_from("<I", message, 4)[0])) or True, "EPROTO"),
       ("a reply to a login", lambda _, peer, message: peer.send(reply(LOGIN, struct.unpack_from("<I", message, 4)[0])) or True, "EPROTO"))
def keys_challenge(begin, hook, pattern):
    server = served(begin, on={"challenge": hook})
    text = refused(begin, server, pattern, key=TEXT)
    expect("logins", len(server.logins), 0)
    return text


# Who takes the server's place, or is in between, may keep a map from its server, and no more.
@cases("keys", *(
    (f"{words} with code {code}, then the server", name, code)
    for name, words in (("connect", "a rejection"), ("challenge", "a refused challenge"), ("connect_io", "an I/O connection that is rejected"))
    for code in (NOT_ADMITTED, EVICTED)))
def keys_no_end(begin, name, code):

    def refuse(_, peer, message):
        if message is None:
            peer.reject(rejection(code, "gone for good"))
        else:
            peer.send(reply(CHALLENGE, struct.unpack_from("<I", message, 4)[0], code=code, text="gone for good"))
        return True

    server = served(begin)
    m = server.mapped(begin)
    server.on[name] = times(3, refuse)
    server.cut(m)
    m.works(server)
    expect("the state", m.state(), "live")


# The server itself may say so.
@cases("keys", ("not admitted", NOT_ADMITTED), ("evicted", EVICTED))
def keys_end(begin, code):
    server = served(begin)
    m = server.mapped(begin)
    server.on["login"] = lambda _, peer, message: peer.send(reply(LOGIN, struct.unpack_from("<I", message, 4)[0], code=code)) or True
    server.cut(m)
    m.soon(lambda: m.state() == "evicted", "the map is not evicted")


@cases("keys",
       ("no ticket", lambda _: bytes(16)), ("another ticket", lambda _: os.urandom(16)),
       ("a ticket with one bit changed", lambda ticket: flipped(ticket, 127)))
def keys_ticket(begin, lie):
    return refused(begin, served(begin, lies={"ticket": lie}), NO_PROOF, key=TEXT)


@case("keys", "the ticket of another queue")
def keys_ticket_queue(begin):
    taken = []

    def lie(ticket):
        taken.append(ticket)
        return taken[0]

    return refused(begin, served(begin, lies={"ticket": lie}), NO_PROOF, key=TEXT, queues=2)


@cases("keys",
       ("no tag", lambda whole: whole[:-16]), ("a tag with one bit changed", lambda whole: flipped(whole, 8 * len(whole) - 1)),
       ("a message with one bit changed", lambda whole: flipped(whole, 8 * 120)), ("no byte", lambda _: b""))
def keys_login_tag(begin, lie):
    return refused(begin, served(begin, lies={"message": lie}), SPOILT, key=TEXT)


def spoil_twice(server):
    whole = []
    server.lies["message"] = lambda said: whole.append(said) or whole[0]
    server.say(extent(SIZE, number=1))
    server.say(extent(SIZE, number=1))


def spoil_with(lie):
    def spoil(server):
        server.lies["message"] = lie
        server.say(extent(2 * SIZE, number=9))

    return spoil


# The path is lost, and made anew; what was said has no effect.
@cases("keys",
       ("an extent without a tag", spoil_with(lambda whole: whole[:-16])),
       ("an extent with one bit changed", spoil_with(lambda whole: flipped(whole, 8 * 8))),
       ("an extent with another tag", spoil_with(lambda whole: whole[:-16] + os.urandom(16))),
       ("a message twice", spoil_twice))
def keys_event(begin, spoil):
    server = served(begin)
    m = server.mapped(begin)
    before = m.reconnects()
    spoil(server)
    m.soon(lambda: show_state(m) != "live", "the path goes on")
    server.lies.clear()
    m.works(server)
    if m.reconnects() == before:
        raise Failed("it was not connected anew")
    expect("the size", m.size(), SIZE)


if __name__ == "__main__":
    main(*sys.argv[1:])
