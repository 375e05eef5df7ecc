# SPDX-License-Identifier: GPL-2.0
"""Persistent reservations of a disk, by the ioctls of linux/pr.h: pr.py DEVICE COMMAND [NUMBER]...

  register OLD NEW [1]    with 1, whatever the old key is
  reserve KEY TYPE        release KEY TYPE
  preempt KEY VICTIM TYPE clear KEY
  keys                    prints the generation and the keys
  reservation             prints the key of the holder and the type

Prints OK, CONFLICT or the error.
"""
import ctypes
import errno
import fcntl
import os
import struct
import sys

CONFLICT = 0x18
ROOM = 40


def ioc(direction, number, size):
    return direction << 30 | size << 16 | ord("p") << 8 | number


def change(number, form, *fields):
    data = struct.pack(form, *fields)
    return number, data


COMMANDS = {
    "register": lambda old, new, ignore=0: change(200, "<QQI4x", old, new, ignore),
    "reserve": lambda key, kind: change(201, "<QII", key, kind, 0),
    "release": lambda key, kind: change(202, "<QII", key, kind, 0),
    "preempt": lambda key, victim, kind: change(204, "<QQII", key, victim, kind, 0),
    "clear": lambda key: change(205, "<QI4x", key, 0),
}


def main(device, name, *numbers):
    file = os.open(device, os.O_RDWR)
    if name == "keys":
        keys = (ctypes.c_uint64 * ROOM)()
        data = bytearray(struct.pack("<IIQ", 0, ROOM, ctypes.addressof(keys)))
        fcntl.ioctl(file, ioc(3, 206, len(data)), data)
        generation, count, _ = struct.unpack("<IIQ", data)
        return " ".join(map(str, [generation, *sorted(keys[:count])]))
    if name == "reservation":
        data = bytearray(16)
        fcntl.ioctl(file, ioc(2, 207, len(data)), data)
        key, _, kind = struct.unpack("<QII", data)
        return f"{key} {kind}"
    number, data = COMMANDS[name](*map(int, numbers))
    # fcntl.ioctl() returns the data, not the status.
    libc = ctypes.CDLL(None, use_errno=True)
    status = libc.ioctl(file, ctypes.c_ulong(ioc(1, number, len(data))), data)
    if status < 0:
        raise OSError(ctypes.get_errno(), "")
    return {0: "OK", CONFLICT: "CONFLICT"}.get(status, str(status))


if __name__ == "__main__":
    try:
        print(main(*sys.argv[1:]))
    except OSError as error:
        print(errno.errorcode[error.errno].replace("ENOTSUP", "EOPNOTSUPP"))
