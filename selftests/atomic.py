# SPDX-License-Identifier: GPL-2.0
"""Atomic writes of user space:

  atomic.py limits DEVICE                        the smallest and the largest one, as statx says
  atomic.py write DEVICE OFFSET LENGTH           writes it at once; prints OK or the error
  atomic.py batch DEVICE OFFSET LENGTH COUNT     submits COUNT of LENGTH, one behind the other, as one batch; prints OK or the errors
  atomic.py storm DEVICE LENGTH COUNT STOP       writes the first COUNT units, each of one byte only, until the file STOP is there; prints how many
  atomic.py torn DEVICE LENGTH COUNT             how many of these units have bytes that are not all the same
"""
import ctypes
import errno
import mmap
import os
import struct
import sys

RWF_ATOMIC = 0x40
AT_FDCWD, STATX_WRITE_ATOMIC = -100, 0x10000
# On x86-64.
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = 206, 208, 209
IOCB_CMD_PWRITE = 1
libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def room(length, byte=None):
    """Memory that begins with a page."""
    memory = mmap.mmap(-1, length)
    memory[:] = os.urandom(length) if byte is None else bytes([byte]) * length
    return memory


def limits(device):
    found = ctypes.create_string_buffer(256)
    checked(libc.statx(AT_FDCWD, device.encode(), 0, STATX_WRITE_ATOMIC, found))
    return " ".join(map(str, struct.unpack_from("<II", found, 168)))


def write(device, offset, length):
    file = os.open(device, os.O_RDWR | os.O_DIRECT)
    done = os.pwritev(file, [room(int(length))], int(offset), RWF_ATOMIC)
    return "OK" if done == int(length) else f"{done} bytes"


def batch(device, offset, length, count):
    offset, length, count = int(offset), int(length), int(count)
    file = os.open(device, os.O_RDWR | os.O_DIRECT)
    memory = room(length * count)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    context = ctypes.c_ulong(0)
    checked(libc.syscall(IO_SETUP, count, ctypes.byref(context)))
    iocbs = [ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", n, 0, RWF_ATOMIC, IOCB_CMD_PWRITE, 0, file, base + n * length, length,
                                                     offset + n * length, 0, 0, 0), 64) for n in range(count)]
    table = (ctypes.c_void_p * count)(*map(ctypes.addressof, iocbs))
    submitted = checked(libc.syscall(IO_SUBMIT, context, ctypes.c_long(count), table))
    if submitted != count:
        return f"{submitted} submitted"
    events = ctypes.create_string_buffer(32 * count)
    checked(libc.syscall(IO_GETEVENTS, context, ctypes.c_long(count), ctypes.c_long(count), events, None))
    wrong = {result for _, _, result, _ in struct.iter_unpack("<QQqq", events) if result != length}
    return "OK" if not wrong else " ".join(errno.errorcode.get(-result, str(result)) for result in wrong)


def storm(device, length, count, stop):
    length, count = int(length), int(count)
    file = os.open(device, os.O_RDWR | os.O_DIRECT)
    memory, done = room(length, 0), 0
    while not os.path.exists(stop):
        memory[:] = bytes([1 + done % 255]) * length
        if os.pwritev(file, [memory], done % count * length, RWF_ATOMIC) != length:
            return f"a short write after {done}"
        done += 1
    return done


def torn(device, length, count):
    length = int(length)
    file = os.open(device, os.O_RDONLY | os.O_DIRECT)
    memory, found = room(length, 0), 0
    for n in range(int(count)):
        os.preadv(file, [memory], n * length)
        found += len(set(memory[:])) != 1
    return found


if __name__ == "__main__":
    try:
        print({"limits": limits, "write": write, "batch": batch, "storm": storm, "torn": torn}[sys.argv[1]](*sys.argv[2:]))
    except OSError as error:
        # Python has two names for this one.
        print(errno.errorcode[error.errno].replace("ENOTSUP", "EOPNOTSUPP"))
