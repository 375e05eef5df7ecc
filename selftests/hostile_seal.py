#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A client that has a key and speaks in frames, and breaks them: hostile_seal.py SERVER GROUP

Does the cases of a group as hostile.py does its own. After each that writes it looks from another connection whether the export is as it
was. KEY is the key of the host "hostile" at the exports "seal", "crc32c" and "none", which have these protections, OTHER that of the host
"other" at "none". At "seal" the host "bare" has no key; "open" is an export with crc32c for everybody. What the groups count:

  kept      nothing: the protocol is kept, and each command is answered
  logins    nothing: logins that are refused
  forged    frames, or data, with a wrong check, as forged
  violation frames that are wrong though their check is right, as violations of the protocol
  raced     data that change while they are fetched, as forged or not at all
  either    what is no frame, as one of these two

Long: most of it is a list of cases, which share the client at the top.
"""
import sys

sys.dont_write_bytecode = True

import os
import struct

import frames
from frames import CHECK, CRC32C, HEAD, NO_CHECK, NONE, NUMBER, REMOTE, SEAL, Direction, Forged
from handshake import flipped, keys_of_data
from hostile import (
    AUTH_FAILED, AUTH_REQUIRED, FUA, INLINE_MAX, IO, MALFORMED, MINE, OK, OUT_OF_RANGE, PROTECTION, READ, WR_SEND_WITH_IMMEDIATE, WRITE,
    Connection, Failed, Refused, Session, case, cases, command, expect, flush, inline_read, inline_write, main, refused, request)
from hostile_keys import KEY, OTHER, Keyed
from window import Windows

WORDS = {NONE: b"none", CRC32C: b"crc32c", SEAL: b"seal"}
PROTECTIONS = (("seal", SEAL), ("crc32c", CRC32C))
# The largest read or write of a path with protection, and what the exports may say instead.
LARGE = 64 << 10


class Framed(Connection):
    """An I/O connection that speaks in frames."""

    windows = None

    def begin(self, protection, keys):
        self.out, self.into = (Direction(protection, key) for key in keys)
        self.answered = {}
        return self

    def remote(self, **fields):
        """Memory that the server may read and write for one command, as the fields of that."""
        self.windows = self.windows or Windows(self)
        return self.windows.open(**fields)

    def close(self):
        if self.windows:
            self.windows.free()
        super().close()

    def frame(self, asked, check=NO_CHECK, number=None):
        """The frame of a command."""
        return self.out.frame(asked[:32] + check + asked[32:], number)

    def ask(self, asked, check=NO_CHECK, number=None):
        self.send(self.frame(asked, check, number))

    def answer(self, asked):
        """The status, the data check and the inline data of the answer to a command, and the number of its frame."""
        whole, immediate = self.receive()
        expect("the immediate data", immediate, None)
        try:
            number, body = self.into.body(whole)
        except Forged as error:
            raise Failed(f"of an answer {error}") from None
        if not 0 < number < REMOTE:
            raise Failed(f"the number of an answer is {number:#x}")
        status, tag, generation, credit, rest = struct.unpack_from("<HHIH6s", body)
        expect("tag and generation", (tag, generation), struct.unpack_from("<HI", asked, 2))
        expect("the reserved bytes", rest, bytes(6))
        if not credit:
            raise Failed("the answer gives no credit")
        if number in self.answered.values() or number <= self.answered.get(tag, 0):
            raise Failed(f"number {number} is used again, or late")
        self.answered[tag] = number
        return status, body[16:32], body[32:], number

    def status_of(self, asked, **fields):
        """Sends a command of which no data come back; the status of its answer."""
        self.ask(asked, **fields)
        status, check, data, _ = self.answer(asked)
        expect("the data check and the data", (check, data), (NO_CHECK, b""))
        return status

    def put(self, data, tag=1, offset=MINE):
        """The command that writes `data` from remote memory, with its data check and the number of its frame."""
        number = self.out.next()
        asked = command(WRITE, tag=tag, offset=offset, length=len(data), **self.remote(length=len(data)))
        stored, check = self.out.data(number, asked, data)
        self.memory[self.data : self.data + len(stored)] = stored
        return asked, check, number

    def written(self, data, tag=1, **fields):
        """Writes inline data."""
        expect("the status of a write", self.status_of(inline_write(data, tag=tag, **fields)), OK)

    def read(self, length=INLINE_MAX, tag=1, **fields):
        """Reads inline data."""
        asked = inline_read(length, tag=tag, **fields)
        self.ask(asked)
        status, check, data, _ = self.answer(asked)
        expect("status, data check, and length of a read", (status, check, len(data)), (OK, NO_CHECK, length))
        return data

    def written_remotely(self, data, tag=1, **fields):
        asked, check, number = self.put(data, tag, **fields)
        expect("the status of a write", self.status_of(asked, check=check, number=number), OK)

    def read_remotely(self, length=INLINE_MAX, tag=1, offset=MINE):
        asked = command(READ, tag=tag, offset=offset, length=length, **self.remote(length=length))
        self.ask(asked)
        status, check, data, number = self.answer(asked)
        expect("the status of a read, and its inline data", (status, data), (OK, b""))
        there = self.memory[self.data : self.data + length]
        return self.into.plain(number, asked, there, check)

    def works(self):
        """What is written is read back."""
        data = os.urandom(INLINE_MAX)
        self.written(data)
        if self.read() != data:
            raise Failed("what is read is not what was written")
        return data


class Sealed(Keyed):
    """A session with a key and a protection."""

    CONNECTION = Framed

    def __init__(self, protection=SEAL, key=KEY, export=None, **wanted):
        super().__init__(key)
        self.protection = protection
        self.login(export or WORDS[protection], protection=protection, **wanted)
        self.size, = struct.unpack_from("<Q", self.reply, 152)
        self.credit, = struct.unpack_from("<H", self.reply, 204)

    def framed(self, queue=0, **options):
        io = self.io(queue, room=8192, **options)
        return io.begin(self.protection, keys_of_data(self.data, io.private[32:48], io.reply[8:24]))


class Digested(Session):
    """A session without a key, with crc32c."""

    def __init__(self, export=b"open"):
        super().__init__(export, protection=CRC32C)

    def framed(self, queue=0):
        return Framed(request(IO, queue, self.id), room=8192).begin(CRC32C, (None, None))


class Attack:
    """What an attack has: a session with a connection that works, and what is on the export before."""

    def __init__(self, protection=SEAL, make=Sealed):
        self.session = make(protection)
        self.protection, self.make = protection, make
        self.io = self.session.framed()
        self.old = self.io.works()
        self.new = os.urandom(INLINE_MAX)

    def body(self):
        """The body of a write."""
        return inline_write(self.new, tag=2)[:32] + NO_CHECK + self.new

    def frame(self, **fields):
        """The honest frame of it."""
        return self.io.out.frame(self.body(), **fields)

    def over(self):
        """The session has ended, without an answer, and nothing was written."""
        for connection in self.io, self.session.control:
            connection.must_end()
        expect("answers", len(self.io.inbox), 0)
        self.unchanged()

    def unchanged(self):
        if self.make(self.protection).framed().read() != self.old:
            raise Failed("it was written")


def both(*table):
    """A table of cases for both protections; in a short test the second one has a third of them."""
    step = 3 if os.environ.get("FARBLK_SHORT") else 1
    return [(f"{name}: {words}", protection, *arguments) for name, protection in PROTECTIONS
            for words, *arguments in table[:: step if protection == CRC32C else 1]]


# --- the protocol is kept -------------------------------------------------------------------------


@case("kept", "the vectors")
def kept_vectors():
    expect("wrong vectors", frames.main(), 0)


@cases("kept", 0, *PROTECTIONS, ("crc32c without a key", None))
def kept(protection):
    session = Digested() if protection is None else Sealed(protection)
    ios = [session.framed(queue) for queue in range(2)]
    for io in ios:
        io.works()
    io, other = ios
    # What one connection has written the other one reads, inline and remotely.
    for length in 512, INLINE_MAX:
        data = os.urandom(length)
        io.written(data, tag=5)
        expect("an inline read", other.read(length) == data, True)
        expect("a remote read", other.read_remotely(length, tag=7) == data, True)
    for length in 512, INLINE_MAX, LARGE:
        data = os.urandom(length)
        io.written_remotely(data, tag=4)
        expect("a remote read of a remote write", other.read_remotely(length) == data, True)
    expect("a remote read on the same connection", io.read_remotely(LARGE) == data, True)
    expect("the status of a flush", io.status_of(flush(tag=3)), OK)
    expect("the status of a durable write", io.status_of(inline_write(data[:512], flags=2 | FUA, tag=3)), OK)
    # A refusal has no data check, of either kind of read.
    expect("the status beyond the end", io.status_of(inline_read(offset=session.size)), OUT_OF_RANGE)
    expect("the status beyond the end", io.status_of(command(READ, offset=session.size, length=512, **io.remote())), OUT_OF_RANGE)
    io.works()


@cases("kept", 0, *PROTECTIONS)
def kept_numbers(protection):
    io = Sealed(protection).framed()
    # Each tag has numbers of its own, and these may have gaps.
    for number, tag in (7, 1), (3, 2), (1, 3), (8, 1), (5, 2), (1 << 40, 1), (6, 4), (REMOTE - 1, 5), (9, 2):
        expect(f"the status with number {number}", io.status_of(flush(tag=tag), number=number), OK)


@cases("kept", 0, *PROTECTIONS)
def kept_in_flight(protection):
    session = Sealed(protection)
    io = session.framed()
    asked = [inline_read(512, offset=MINE + 512 * tag, tag=tag) for tag in range(session.credit)]
    # They are sent in another order than they are numbered.
    made = [io.frame(one) for one in asked]
    for frame in made[::-1]:
        io.send(frame)
    seen = set()
    for _ in asked:
        io.until(lambda: io.inbox or io.ended, "there is no answer")
        expect("the end", io.ended, False)
        tag, = struct.unpack_from("<2xH", io.into.body(io.inbox[0][0])[1])
        expect("the status", io.answer(asked[tag])[0], OK)
        seen.add(tag)
    expect("answers", len(seen), len(asked))


# --- logins ---------------------------------------------------------------------------------------


@cases("logins", 0, *((f"{WORDS[export].decode()} is asked for {WORDS[asked].decode()}", export, asked)
                      for export in WORDS for asked in WORDS if export != asked))
def refused_protection(export, asked):
    refused(PROTECTION, Keyed().login, WORDS[export], protection=asked)
    Keyed().login(WORDS[export], protection=export)


@cases("logins", 0, *((f"protection {number}", number) for number in (3, 0x80, 0xFF)))
def refused_unknown(number):
    for export in WORDS.values():
        refused(MALFORMED, Keyed().login, export, protection=number)


# Whatever the protection that is asked for, it says nothing about that of the export.
@cases("logins", 0, *((WORDS[asked].decode(), asked) for asked in WORDS))
def refused_without_key(asked):
    for host in b"hostile", b"nobody":
        refused(AUTH_REQUIRED, Session, b"seal", host=host, protection=asked)
        refused(AUTH_FAILED, Keyed(OTHER).login, b"seal", host=host, protection=asked)


@case("logins", "a host without a key at a sealed export, which has proved none, or that of another host")
def refused_bare():
    refused(AUTH_REQUIRED, Session, b"seal", host=b"bare", protection=SEAL)
    for key in KEY, OTHER:
        try:
            Keyed(key).login(b"seal", host=b"bare", protection=SEAL)
        except Refused as refusal:
            if refusal.args[0] not in (AUTH_REQUIRED, AUTH_FAILED):
                raise
        else:
            raise Failed("it is let in")


# --- wrong checks ---------------------------------------------------------------------------------

# Where the parts of a frame with a write are, and what to change there: (words, byte).
PARTS = [("the number", 0), ("the highest byte of the number", 6), ("the check", NUMBER), ("the end of the check", HEAD - 1), *(
    (words, HEAD + at) for words, at in (
        ("the operation", 0), ("the flags", 1), ("the tag", 2), ("the generation", 4), ("the length", 8), ("the rkey", 12), ("the offset", 16),
        ("the end of the offset", 23), ("the address", 24), ("the data check", 32), ("the end of the data check", 47), ("the data", 48),
        ("the last byte", 48 + INLINE_MAX - 1)))]


@cases("forged", 1, *both(*((f"a bit of {words} is changed", at) for words, at in PARTS)))
def forged_bit(protection, at):
    attack = Attack(protection)
    attack.io.send(flipped(attack.frame(), 8 * at))
    attack.over()


@cases("forged", 1, *both(
    ("another check", lambda frame: frame[:NUMBER] + os.urandom(CHECK) + frame[HEAD:]),
    ("a check of zeroes", lambda frame: frame[:NUMBER] + bytes(CHECK) + frame[HEAD:]),
    ("a byte less", lambda frame: frame[:-1]),
    ("a block less", lambda frame: frame[:-64]),
    ("no data", lambda frame: frame[: HEAD + 48]),
    ("the blocks of the data swapped",
     lambda frame: frame[: HEAD + 64] + frame[HEAD + 128 : HEAD + 192] + frame[HEAD + 64 : HEAD + 128] + frame[HEAD + 192 :]),
    ("the check behind the body", lambda frame: frame[:NUMBER] + frame[HEAD:] + frame[NUMBER:HEAD]),
    ("random bytes", lambda frame: frame[:NUMBER] + os.urandom(len(frame) - NUMBER)),
    ("a plain command", lambda frame: inline_write(os.urandom(INLINE_MAX), tag=2)),
    ("a plain flush that is as long as a frame", lambda frame: flush(tag=2) + bytes(HEAD + 16))))
def forged_frame(protection, change):
    attack = Attack(protection)
    attack.io.send(change(attack.frame()))
    attack.over()


@cases("forged", 1, *both(("a byte more", b"\0"), ("a block more", bytes(64))))
def forged_longer(protection, more):
    attack = Attack(protection)
    attack.io.send(attack.io.frame(inline_write(attack.new[:512], tag=2)) + more)
    attack.over()


# Nobody counts what there is no receive for.
@cases("forged", 0, *both(("a byte more than there is room for", 1), ("16 KiB more", 16 << 10)))
def forged_too_long(protection, more):
    attack = Attack(protection)
    attack.io.send(attack.frame() + bytes(more))
    attack.over()


@cases("forged", 1, *((f"padding of a check: byte {at}", at) for at in (4, 5, 15)))
def forged_padding(at):
    for data in False, True:
        attack = Attack(CRC32C)
        if data:
            asked, check, number = attack.io.put(attack.new, tag=2)
            attack.io.ask(asked, flipped(check, 8 * at), number)
        else:
            attack.io.send(flipped(attack.frame(), 8 * (NUMBER + at)))
        attack.over()
    return 2


@cases("forged", 1, *both(
    ("a frame of the other protection", lambda a: Direction(CRC32C + SEAL - a.protection, a.io.out.key).frame(a.body(), 9)),
    ("a frame with the number of the next one", lambda a: struct.pack("<Q", a.io.out.last + 2) + a.frame()[NUMBER:])))
def forged_kind(protection, make):
    attack = Attack(protection)
    attack.io.send(make(attack))
    attack.over()


# Frames that are right elsewhere.
@cases("forged", 1,
       ("the key of the server", lambda a: a.io.into.key),
       ("the key of another connection of the session", lambda a: a.session.framed(1).out.key),
       ("the key of another session", lambda a: Sealed().framed().out.key),
       ("a key of zeroes", lambda a: bytes(32)),
       ("the key of the session", lambda a: a.session.data),
       ("the key of the host", lambda a: KEY))
def forged_key(key):
    attack = Attack()
    attack.io.send(Direction(SEAL, key(attack)).frame(attack.body(), 9))
    attack.over()


# Data make it as long as a frame of the client.
@case("forged", "an answer of the server is sent back to it", 1)
def forged_reflected():
    attack = Attack()
    attack.io.ask(inline_read(512, tag=1))
    whole, _ = attack.io.receive()
    attack.io.send(whole)
    attack.over()


# The first frame of each connection has number 1, and is the first with its tag.
@cases("forged", 1, ("on another connection of the session", False), ("on a connection of another session", True))
def forged_replayed(session):
    attack = Attack()
    seen = attack.session.framed(1)
    frame = seen.frame(inline_write(attack.new, tag=2))
    # It is not sent where it is right: there it would be written.
    if session:
        attack.session.control.close()
        attack.session = Sealed()
        attack.io = attack.session.framed()
    attack.io.send(frame)
    attack.over()


# The same frame was taken, and its write done, before.
@cases("forged", 1, *((f"of {words} that was done", remote) for words, remote in (("an inline write", False), ("a remote write", True))))
def forged_again(remote):
    first = Attack()
    if remote:
        asked, check, number = first.io.put(first.new, tag=2)
        frame = first.io.frame(asked, check, number)
    else:
        asked = inline_write(first.new, tag=2)
        frame = first.frame()
    first.io.send(frame)
    expect("the status", first.io.answer(asked)[0], OK)
    attack = Attack()
    attack.io.send(frame)
    attack.over()


# --- wrong data in remote memory ------------------------------------------------------------------


def other_number(io, asked, number, data):
    return io.out.data(number + 1, asked, data)


def other_command(at):
    def make(io, asked, number, data):
        return io.out.data(number, flipped(asked, 8 * at), data)

    return make


def as_frame(io, asked, number, data):
    """Sealed as the body of a frame would be."""
    if io.out.protection == SEAL:
        return frames.seal(io.out.key, frames.nonce_of(number), data, asked)
    return data, frames.digest(number, asked, data)


# The data, and their check, for a write whose number is known.
@cases("forged", 1, *both(
    ("another check", lambda io, asked, number, data: (io.out.data(number, asked, data)[0], os.urandom(CHECK))),
    ("a check of zeroes", lambda io, asked, number, data: (io.out.data(number, asked, data)[0], NO_CHECK)),
    ("plain data with a check of zeroes", lambda io, asked, number, data: (data, NO_CHECK)),
    ("a bit of the check", lambda io, asked, number, data: (lambda there, check: (there, flipped(check, 5)))(*io.out.data(number, asked, data))),
    ("the first bit of the data", lambda io, asked, number, data: (lambda there, check: (flipped(there), check))(*io.out.data(number, asked, data))),
    ("the last bit of the data",
     lambda io, asked, number, data: (lambda there, check: (flipped(there, 8 * len(there) - 1), check))(*io.out.data(number, asked, data))),
    ("the first half for the second",
     lambda io, asked, number, data: (lambda there, check: (there[len(there) // 2 :] + there[: len(there) // 2], check))(
         *io.out.data(number, asked, data))),
    ("sealed with another number", other_number),
    ("sealed with the number of the frame itself", as_frame),
    ("sealed for another offset", other_command(17)),
    ("sealed for another length", other_command(9)),
    ("sealed for another tag", other_command(2)),
    ("sealed for another generation", other_command(4)),
    ("sealed for another address", other_command(25)),
    ("sealed for another key", other_command(12)),
    ("sealed for another operation", other_command(0)),
    ("of the other protection", lambda io, asked, number, data: Direction(CRC32C + SEAL - io.out.protection, KEY).data(number, asked, data))))
def forged_data(protection, make):
    attack = Attack(protection)
    io, number = attack.io, attack.io.out.next()
    asked = command(WRITE, tag=2, length=INLINE_MAX, **io.remote())
    there, check = make(io, asked, number, attack.new)
    io.memory[io.data : io.data + len(there)] = there
    io.ask(asked, check, number)
    attack.over()


@cases("forged", 1,
       ("sealed with the key of the server", lambda a: a.io.into),
       ("sealed with the key of another connection", lambda a: a.session.framed(1).out))
def forged_data_key(direction):
    attack = Attack()
    io, number = attack.io, attack.io.out.next()
    asked = command(WRITE, tag=2, length=INLINE_MAX, **io.remote())
    there, check = direction(attack).data(number, asked, attack.new)
    io.memory[io.data : io.data + len(there)] = there
    io.ask(asked, check, number)
    attack.over()


# The second command is not sent: it would be counted, too, or not, as the session ends.
@cases("forged", 1, *both(("the data of two commands are swapped",)))
def forged_swapped(protection):
    attack = Attack(protection)
    io = attack.io
    # One window has the memory of both.
    fields = io.remote(length=2 * INLINE_MAX)
    made = []
    for tag in 2, 3:
        number = io.out.next()
        at = (tag - 2) * INLINE_MAX
        asked = command(WRITE, tag=tag, offset=MINE + at, length=INLINE_MAX, rkey=fields["rkey"], addr=fields["addr"] + at)
        made.append((asked, number, *io.out.data(number, asked, os.urandom(INLINE_MAX))))
    for at, (_, _, there, _) in zip((INLINE_MAX, 0), made):
        io.memory[io.data + at : io.data + at + INLINE_MAX] = there
    asked, number, _, check = made[0]
    io.ask(asked, check, number)
    attack.over()


# The data were right once: they are those of the write before, from the same memory.
@cases("forged", 1, *both(("the data of the write before",)))
def forged_old_data(protection):
    attack = Attack(protection)
    io = attack.io
    io.written_remotely(attack.old, tag=2)
    there = io.memory[io.data : io.data + INLINE_MAX]
    asked, check, number = io.put(attack.new, tag=2)
    io.memory[io.data : io.data + INLINE_MAX] = there if protection == SEAL else os.urandom(INLINE_MAX)
    io.ask(asked, check, number)
    attack.over()


# The server has them, or those before: never some of each.
@cases("raced", 0, *both(("data that change while the server fetches them",)))
def raced(protection):
    ended = 0
    for _ in range(4):
        attack = Attack(protection)
        io = attack.io
        data = os.urandom(LARGE)
        asked, check, number = io.put(data, tag=2)
        io.ask(asked, check, number)
        for at in range(LARGE - 64, 0, -4096):
            io.memory[io.data + at : io.data + at + 64] = os.urandom(64)
        io.until(lambda: io.inbox or io.ended, "neither an answer nor the end")
        if io.inbox:
            expect("the status", io.answer(asked)[0], OK)
            have = attack.make(protection).framed().read_remotely(LARGE)
            if have != data:
                raise Failed("what was written is neither")
        else:
            attack.over()
            ended += 1
    return ended


# --- frames with a right check that are wrong -----------------------------------------------------


@cases("violation", 1, *both(
    ("a frame twice", lambda io, frame, asked: (frame, frame)),
    ("a frame again, after it was answered", lambda io, frame, asked: (frame, None, frame)),
    ("a number again", lambda io, frame, asked: (frame, None, io.frame(asked, number=io.out.last))),
    ("a lower number with the same tag", lambda io, frame, asked: (frame, None, io.frame(asked, number=1))),
    ("a lower number after the highest there is", lambda io, frame, asked: (
        io.frame(asked, number=REMOTE - 1), None, io.frame(asked, number=REMOTE - 2)))))
def violation_number(protection, make):
    attack = Attack(protection)
    io = attack.io
    asked = inline_write(attack.new, tag=2)
    frame = io.frame(asked)
    for said in make(io, frame, asked):
        if said is None:
            expect("the status of the first", io.answer(asked)[0], OK)
            # What comes next must not write again.
            io.written(attack.old, tag=3)
            attack.new = attack.old
        else:
            io.send(said)
    for connection in io, attack.session.control:
        connection.must_end()
    if len(io.inbox) > 1:
        raise Failed("it is answered twice")
    if attack.make(protection).framed().read() not in (attack.old, attack.new):
        raise Failed("something else was written")


# A replay of a write that was done must not undo the one after it.
@cases("violation", 1, *both(("the frame of an older write, after a newer one",)))
def violation_replay(protection):
    attack = Attack(protection)
    frame = attack.frame()
    attack.io.send(frame)
    expect("the status", attack.io.answer(inline_write(attack.new, tag=2))[0], OK)
    attack.io.written(attack.old, tag=1)
    attack.io.send(frame)
    attack.over()


# The parts of a body with a right check.
@cases("violation", 1, *both(
    ("a data check that is not zero with an inline write", lambda a: inline_write(a.new, tag=2), b"\0" * 15 + b"\x01"),
    ("a data check that is not zero with an inline read", lambda a: inline_read(tag=2), b"\x01" + bytes(15)),
    ("a data check that is not zero with a flush", lambda a: flush(tag=2), b"x" * CHECK),
    ("a data check that is not zero with a remote read", lambda a: command(READ, tag=2, length=512, **a.io.remote()), b"x" * CHECK),
    ("half a data check", lambda a: flush(tag=2), NO_CHECK[:8]),
    ("no data check", lambda a: flush(tag=2), b""),
    ("half a command", lambda a: flush(tag=2)[:16], b""),
    ("an empty body", lambda a: b"", b""),
    ("a flush with data", lambda a: flush(tag=2) + bytes(512), NO_CHECK),
    ("an inline write with a byte less", lambda a: inline_write(a.new, tag=2)[:-1], NO_CHECK),
    ("an inline write with a byte more", lambda a: inline_write(a.new[:512], tag=2) + b"x", NO_CHECK),
    ("an inline write without data", lambda a: inline_write(a.new, tag=2)[:32], NO_CHECK),
    ("an inline write with data in the place of the data check", lambda a: inline_write(a.new, tag=2), b""),
    ("an unknown operation", lambda a: command(9, tag=2), NO_CHECK),
    ("a tag beyond the depth", lambda a: inline_read(tag=16), NO_CHECK)))
def violation_body(protection, make, check):
    attack = Attack(protection)
    attack.io.ask(make(attack), check)
    attack.over()


@cases("violation", 1, ("a sealed frame", SEAL), ("a frame with crc32c", CRC32C))
def violation_plain(protection):
    session = Sealed(NONE)
    io = session.io(room=8192)
    io.begin(protection, (KEY, KEY))
    io.send(io.frame(inline_write(os.urandom(512), tag=2)))
    for connection in io, session.control:
        connection.must_end()


# --- what is no frame -----------------------------------------------------------------------------


@cases("either", 1, *both(
    ("no byte", lambda a: b""),
    ("a byte", lambda a: b"\x01"),
    ("a number alone", lambda a: a.frame()[:NUMBER]),
    ("a number and a check alone", lambda a: a.frame()[:HEAD]),
    ("a command less a byte", lambda a: a.io.frame(flush(tag=2))[:-1]),
    ("number 0", lambda a: a.frame(number=0)),
    ("number 2^63", lambda a: a.frame(number=REMOTE)),
    ("number 2^64 - 1", lambda a: a.frame(number=2**64 - 1)),
    ("a plain flush", lambda a: flush(tag=2)),
    ("a plain read", lambda a: inline_read(tag=2))))
def no_frame(protection, make):
    attack = Attack(protection)
    attack.io.send(make(attack))
    attack.over()


@cases("either", 1, *both(("a frame with immediate data",)))
def no_frame_immediate(protection):
    attack = Attack(protection)
    io, frame = attack.io, attack.frame()
    io.memory[:len(frame)] = frame
    io.post(WR_SEND_WITH_IMMEDIATE, 0, len(frame), immediate=7)
    io.until(lambda: io.inbox or io.ended, "neither an answer nor the end")
    if io.ended:
        return attack.over()
    # Immediate data are no part of a message, and it may take no notice.
    expect("the status", io.answer(inline_write(attack.new, tag=2))[0], OK)
    return 0


# Data in remote memory that pass for a frame, and a frame that passes for data.
@case("either", "seal: sealed data are sent as a frame, and the other way round", 2)
def no_frame_data():
    attack = Attack()
    io = attack.io
    asked, check, number = io.put(attack.new, tag=2)
    io.send(struct.pack("<Q", number | REMOTE) + check + io.memory[io.data : io.data + INLINE_MAX])
    attack.over()
    attack = Attack()
    io, number = attack.io, attack.io.out.next()
    frame = io.out.frame(attack.body()[:INLINE_MAX], number)
    asked = command(WRITE, tag=2, length=INLINE_MAX, **io.remote())
    io.memory[io.data : io.data + INLINE_MAX] = frame[HEAD:]
    io.ask(asked, frame[NUMBER:HEAD], io.out.next())
    attack.over()


if __name__ == "__main__":
    main(*sys.argv[1:])
