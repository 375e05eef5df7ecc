# SPDX-License-Identifier: GPL-2.0
"""Has QEMU log each instruction of a guest for a while: tools/vm/run --trace, and the request
"trace" of its scripts.

The log has a line for each block that is executed, and lines that say what is in a block when QEMU
first translates it. So each instruction is made a block of its own ("one-insn-per-tb"), and blocks
must not be chained.
"""
import json
import os
import socket
import threading
import time

# No block of one instruction may be translated while that is not logged, as later logs would have
# it without a word of what it is.
BEGIN = "log in_asm", "one-insn-per-tb on", "log in_asm,exec,nochain"
END = "log in_asm", "one-insn-per-tb off", "log none", "logfile /dev/null"


class Monitor:
    """The monitor of a guest (QMP), of which `theirs` is for QEMU."""

    def __init__(self):
        ours, self.theirs = socket.socketpair()
        self.stream = ours.makefile("rw", encoding="ascii")
        self.greeted = False

    def execute(self, command, **arguments):
        """Executes a command, and raises OSError if that fails."""
        self.stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.stream.flush()
        while line := self.stream.readline():
            said = json.loads(line)
            if said.get("return") in ("", {}):
                return
            if "QMP" not in said and "event" not in said:
                raise OSError(f"{command} {arguments}: {line.strip()}")
        raise OSError("the guest has gone")

    def lines(self, *lines):
        for line in lines:
            self.execute("human-monitor-command", **{"command-line": line})

    def log(self, path, size, answer):
        """Logs to that file, beyond a size, and then answers; does not wait for that."""
        def work():
            try:
                if not self.greeted:
                    self.execute("qmp_capabilities")
                    self.greeted = True
                self.lines(f"logfile {path}", *BEGIN)
                while os.path.getsize(path) < size:
                    time.sleep(0.01)
                self.lines(*END)
            except (OSError, ValueError) as error:
                answer(f"fail {error}")
            else:
                answer("ok")
        threading.Thread(target=work, daemon=True).start()
