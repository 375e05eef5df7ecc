# SPDX-License-Identifier: GPL-2.0
"""A server in user space whose disk has secure erases: eraser.py ADDRESS LOG

Writes a line "erase OFFSET LENGTH" to LOG for each, and the command's name and no more for others that change the disk. Ends with its
standard input. Prints "ready" when it listens.
"""
import sys

import hostile_server
from hostile import DISCARD, ERASE, WRITE, ZEROES

NAMES = {WRITE: "write", DISCARD: "discard", ZEROES: "zeroes"}


def main(address, path):
    hostile_server.ADDRESS = address
    with open(path, "a", encoding="ascii", buffering=1) as log:

        def note(server, _, command):
            if command.op == ERASE:
                log.write(f"erase {command.offset} {command.length}\n")
                server.memory[command.offset : command.offset + command.length] = bytes(command.length)
            elif command.op in NAMES:
                log.write(f"{NAMES[command.op]}\n")
            return False

        server = hostile_server.Server(on={"command": note}, max_erase=1 << 20, erase_granularity=4096)
        print("ready", flush=True)
        sys.stdin.read()
        server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
