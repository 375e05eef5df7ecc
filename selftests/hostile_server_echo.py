#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A server that answers datagrams of a ping otherwise than it should: hostile_server_echo.py ADDRESS SECOND GROUP

Does the cases of the group "echo" as hostile_server.py does its own. With iWARP there are no datagrams.
"""
import sys

sys.dont_write_bytecode = True

import os
import struct
import threading
import time

import hostile
import hostile_server
from hostile import PATIENCE, Failed, expect
from hostile_echo import QKEY, Mailbox
from hostile_server import ATOMICS, case, cases, main, ping

# What a client looks at.
LOOKED_AT = 1024


class Echo(threading.Thread):
    """A queue pair of a server, which does in a thread of its own what `answer` does with each datagram.

    `idle` is called again and again meanwhile. Both get the echo itself, whose `client` is where the client is.
    """

    def __init__(self, begin, answer, idle=lambda echo: None):
        super().__init__(daemon=True)
        hostile.SERVER = hostile_server.ADDRESS
        self.mailbox, self.answer, self.idle, self.lock = Mailbox(), answer, idle, threading.Lock()
        self.client = self.first = self.error = None
        begin.server(on={"echo": self.reply})
        self.start()

    def reply(self, server, peer, message):
        sequence, = struct.unpack_from("<I", message, 4)
        peer.send(*server.echo(sequence, message, number=self.mailbox.number, qkey=QKEY))
        self.client = struct.unpack_from("<II", message, 152)
        return True

    def run(self):
        try:
            while True:
                self.mailbox.look()
                said, self.mailbox.received = self.mailbox.received, []
                with self.lock:
                    for _, data in said if self.client else ():
                        self.first = self.first or data
                        self.answer(self, data)
                    if self.client:
                        self.idle(self)
                time.sleep(0.001)
        except (Failed, OSError) as error:
            self.error = error

    def ping(self, **settings):
        """The outcome, and what last_error says."""
        outcome = ping(export="e", send_ud=1, size=64, **settings)
        with self.lock:
            self.client = None
        expect("what ails the echo", self.error, None)
        return outcome[:2]


def send_back(echo, data):
    echo.mailbox.send(echo.client, data)


def ignore(echo, data):
    pass


@case("echo", "an honest one")
def honest(begin):
    if not ATOMICS:
        return "skipped with iWARP"
    echo = Echo(begin, send_back)
    for wanted in {}, {"depth": 8}, {"polled": 1}:
        expect("the outcome", echo.ping(**wanted), (None, ""))
        # Some may be lost.
        expect("how many there are", ping.answered + ping.lost, 5)
        if not ping.answered:
            raise Failed("all are lost")


@case("echo", "answers to what it has not been sent yet")
def early(begin):
    if not ATOMICS:
        return "skipped with iWARP"
    guesses = []

    def first_one(echo, data):
        if data is echo.first:
            send_back(echo, data)

    def guess(echo):
        # No more than the client looks at.
        if echo.first and len(guesses) < LOOKED_AT // 2:
            number, = struct.unpack_from("<Q", echo.first)
            guesses.extend(range(number + 1, number + 6))
            for each in guesses[-5:]:
                send_back(echo, struct.pack("<Q", each % 2**64) + echo.first[8:])
            time.sleep(0.01)

    echo = Echo(begin, first_one, guess)
    expect("the outcome", echo.ping(depth=8), (None, ""))
    expect("what is lost and answered", (ping.lost, ping.answered), (5, 0))
    if len(guesses) < 50:
        raise Failed(f"{len(guesses)} guesses")


@cases("echo",
       ("another queue pair's without end", "other"),
       ("datagrams of no byte without end", "empty"),
       ("answers to nothing without end", "unasked"))
def flood(begin, kind):
    if not ATOMICS:
        return "skipped with iWARP"
    said = []

    def some(echo):
        for _ in range(16):
            if kind == "empty":
                echo.mailbox.send(echo.client, b"x", length=0)
            elif kind == "other":
                other.send(echo.client, bytes(64))
            elif echo.first:
                send_back(echo, os.urandom(8) + echo.first[8:])
        said.append(16)
        (other if kind == "other" else echo.mailbox).left()

    echo = Echo(begin, ignore, some)
    other = Mailbox()
    start = time.monotonic()
    error, words = echo.ping(count=64, depth=4)
    took = time.monotonic() - start
    expect("the error", (error, words), ("EPROTO", "EPROTO more datagrams came in than were sent"))
    if took > 10 * PATIENCE:
        raise Failed(f"it took {took:.1f} s")
    return f"{sum(said)} datagrams in {took:.1f} s"


if __name__ == "__main__":
    main(*sys.argv[1:])
