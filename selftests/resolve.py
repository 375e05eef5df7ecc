#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Resolves addresses by rdma_cm, each with a timeout in seconds: resolve.py SECONDS ADDRESS... For core.sh.

The last line says how many took less than half of it.
"""
import ctypes
import socket
import struct
import sys
import time
from ctypes import POINTER, byref

from hostile import ADDR_RESOLVED, ID, PS_TCP, CmEvent, cm

timeout, *addresses = sys.argv[1:]
channel = cm.rdma_create_event_channel()
soon = 0
for address in addresses:
    cm_id, event = ID(), POINTER(CmEvent)()
    cm.rdma_create_id(channel, byref(cm_id), None, PS_TCP)
    where = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", 7420, socket.inet_aton(address))
    begun = time.monotonic()
    cm.rdma_resolve_addr(cm_id, None, ctypes.create_string_buffer(where), int(timeout) * 1000)
    cm.rdma_get_cm_event(channel, byref(event))
    took = time.monotonic() - begun
    kind, status = event.contents.type, event.contents.status
    soon += kind == ADDR_RESOLVED and took < int(timeout) / 2
    print(f"{address}: event {kind}, status {status}, after {took:.3f} s")
    cm.rdma_ack_cm_event(event)
    cm.rdma_destroy_id(cm_id)
print(soon, "of", len(addresses))
