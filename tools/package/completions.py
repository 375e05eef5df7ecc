#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Presses the tab key in bash, zsh and fish: completions.py HOST TOOL WORK

HOST is a folder in which the tool and its completion scripts are installed, TOOL the folder of the tool, WORK one to write to.
"""
import os
import pty
import select
import subprocess
import sys
import time

host, tool, work = sys.argv[1:]
share = f"{host}/usr/share"
tree = f"{work}/tree"
CONFIG = f"{tree}/sys/kernel/config/farblk"
NAMES = ["quartz", "zircon"]
for folder in ("maps/quartz/paths/left", "maps/quartz/paths/right", "maps/zircon/paths", "exports/basalt/hosts/node-q",
               "exports/gneiss/hosts", "ports/7"):
    os.makedirs(f"{CONFIG}/{folder}", exist_ok=True)
environment = {"PATH": f"{tool}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": work, "TERM": "xterm", "LC_ALL": "C.UTF-8",
               "XDG_DATA_DIRS": f"{share}:/usr/share"}

# What is typed, and what has to be offered; no line names what it wants, since it is echoed.
CASES = [("unmap ", NAMES), ("path rm quartz ", ["left", "right"]), ("export rm ", ["basalt", "gneiss"]),
         ("export deny basalt ", ["node-q"]), ("unm", ["unmap"])]


def tab(shell, rc, line, wanted):
    """Types a line and presses tab twice in an interactive shell; what it then shows."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(shell[0], shell, environment)
    shown = b""

    def read_until(done, seconds):
        nonlocal shown
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    shown += os.read(fd, 65536)
                except OSError:
                    return

    os.write(fd, (rc + "; echo rea''dy\n").encode())
    read_until(lambda: b"ready\r\n" in shown, 60)
    shown = b""
    os.write(fd, (line + "\t\t").encode())
    read_until(lambda: all(word.encode() in shown for word in wanted), 60)
    os.close(fd)
    os.waitpid(pid, 0)
    return shown.decode(errors="replace")


def fish(line):
    command = ["fish", "--no-config", "-c", f"set fish_complete_path {share}/fish/vendor_completions.d; complete -C {line!r}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


SHELLS = {
    "bash": lambda line, wanted: tab(["bash", "--norc", "--noprofile", "-i"],
                                     f"source {share}/bash-completion/completions/farblk", line, wanted),
    "zsh": lambda line, wanted: tab(["zsh", "-f", "-i"],
                                    f"fpath=({share}/zsh/vendor-completions $fpath); autoload -U compinit; compinit -u -D",
                                    line, wanted),
    "fish": lambda line, wanted: fish(line),
}

failed = 0
for name, shell in SHELLS.items():
    for typed, wanted in CASES:
        line = f"farblk --root {tree} {typed}"
        shown = shell(line, wanted)
        missing = [word for word in wanted if word not in shown]
        if missing:
            failed = 1
            print(f"{name}: {line!r}<TAB> does not give {missing}: {shown!r}")
sys.exit(failed)
