# SPDX-License-Identifier: GPL-2.0
"""Memory of a program that its peer may invalidate: by memory windows of type 2, as no peer can invalidate a region of user space."""
import struct

from ctypes import CFUNCTYPE, POINTER, Structure, addressof, byref, c_int, c_uint32, c_void_p, memmove

from hostile import LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE, SIGNALED, Failed, SendWr, verbs

BIND, TYPE_2, WR_BIND_MW = 16, 2, 8
# In the context of verbs.h, as the operations in hostile.py.
ALLOC_MW, DEALLOC_MW = 7, 9
# Where the fields of a bind are in a SendWr, from its field `rest` on.
REST = 28


class Mw(Structure):
    _fields_ = [("context", c_void_p), ("pd", c_void_p), ("rkey", c_uint32), ("handle", c_uint32), ("type", c_int)]


class Windows:
    """Windows on the data of a connection. Each is for one command, whether the peer invalidates it with its answer or not."""

    def __init__(self, connection):
        self.connection, self.ops, self.all = connection, connection.id.contents.verbs.contents.ops, []
        self.mr = verbs.ibv_reg_mr(connection.pd, connection.base, len(connection.memory), LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | BIND)

    def open(self, at=0, length=4096, access=REMOTE_READ | REMOTE_WRITE):
        """Opens one on `length` bytes from `at` of the data on, before what is sent next. Returns the fields of a command."""
        io = self.connection
        mw = CFUNCTYPE(POINTER(Mw), c_void_p, c_int)(self.ops[ALLOC_MW])(io.pd, TYPE_2)
        self.all.append(mw)
        # The key has to be another one than that of the last time.
        rkey = mw.contents.rkey & 0xFFFFFF00 | mw.contents.rkey + 1 & 0xFF
        addr = io.base + io.data + at
        wr = SendWr(0, None, None, 0, WR_BIND_MW, SIGNALED)
        rest = struct.pack("<QI4xQQQI", addressof(mw.contents), rkey, addressof(self.mr.contents), addr, length, access)
        memmove(addressof(wr) + SendWr.rest.offset + REST, rest, len(rest))
        if io.post_send(io.id.contents.qp, byref(wr), byref(c_void_p())):
            raise Failed("a window is not bound")
        return {"addr": addr, "rkey": rkey}

    def free(self):
        """Gives them back. Before the protection domain goes."""
        for mw in self.all:
            CFUNCTYPE(c_int, POINTER(Mw))(self.ops[DEALLOC_MW])(mw)
        verbs.ibv_dereg_mr(self.mr)
