# SPDX-License-Identifier: GPL-2.0
"""Boots one guest per role, joins them by one network and runs each role's script; started by tools/vm/run.

The guest's side is tools/vm/guest. Each guest has three streams: its console, the output of its script (shown live), and
a control stream of one-line requests, each answered by one line ("ok [VALUE]" or "fail TEXT"):
  barrier NAME        answered when every role has reached NAME
  put KEY VALUE       leaves a word for the others
  get KEY             answered when KEY has been put
  power ROLE off      kills that guest at once, as a crashed machine
  power ROLE stop|cont   freezes it, lets it go on
  exit CODE TAINT     the script has ended; answered when every role has ended
"""
import argparse
import io
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# Any of these on a console fails the run, whatever the scripts say. This is the one list.
SPLATS = re.compile(
    r"WARNING: |BUG[: ]|\bOops|general protection fault|Call Trace:|Kernel panic|kernel BUG at|KFENCE: |KASAN: |UBSAN: |KCSAN: "
    r"|refcount_t: |INFO: task .* blocked for more than|rcu:? .*stall|soft lockup|hard LOCKUP|list_(add|del) corruption"
    r"|panicked at|scheduling while atomic|sleeping function called|unreferenced object|objects remaining (in|on)"
    r"|possible (recursive|circular) locking|suspicious RCU usage|DMA-API: |Unable to handle kernel"
)

# Bits of /proc/sys/kernel/tainted that our module sets by being unsigned (8192) and out of tree (4096).
TAINT_EXPECTED = 4096 | 8192

CMDLINE = (
    "console=ttyS0 loglevel=5 net.ifnames=0 mitigations=off panic=-1 panic_on_warn=1 oops=panic hung_task_panic=1 "
    "sysctl.kernel.hung_task_timeout_secs=60 watchdog_thresh=30 rcupdate.rcu_cpu_stall_timeout=60 kfence.sample_interval=100 "
    "nokaslr tsc=reliable random.trust_cpu=on"
)


class Guest:
    """One QEMU, and what is known of the role that runs in it."""

    def __init__(self, run, number, role, script):
        self.run, self.number, self.role, self.script = run, number, role, script
        self.tail = {"console": b"", "out": b"", "ctl": b""}
        self.streams = {}
        self.files = {}
        self.code = None  # of the script
        self.waits_for = None  # ("barrier"|"get"|"exit", name)
        self.expect_off = False
        self.wire = None  # its end of the network, for us to drain while it is frozen
        self.splats = []
        self.proc = None

    def boot(self, net):
        args, a = [], self.run.args
        fds = [net]
        for name in self.streams_wanted():
            ours, theirs = socket.socketpair()
            self.streams[name] = ours
            self.files[name] = open(f"{a.out}/{self.role}.{name}", "wb", buffering=0)
            fds.append(theirs.detach())
            args += ["-chardev", f"socket,id={name},fd={fds[-1]}"]
        env = [f"ROLE={self.role}", f"NUMBER={self.number}", "ROLES=" + ",".join(g.role for g in self.run.guests)]
        env += [f"SCRIPT={os.path.basename(self.script)}", f"NET={'none' if a.no_net else 'eth0' if len(self.run.guests) > 1 else 'dummy0'}"]
        accel = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"] if a.icount else ["-accel", "tcg,thread=multi"]
        debug = ["slab_debug=FZPU"] if a.slab_debug else []
        cmd = [
            "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-M", "q35", "-nodefaults", "-no-user-config", "-display", "none",
            "-no-reboot", "-cpu", "max", *accel, "-smp", str(a.smp), "-m", str(a.mem), "-name", self.role,
            "-kernel", f"{a.guest}/vmlinux", "-initrd", f"{a.guest}/initramfs",
            "-append", " ".join([CMDLINE, *debug, *a.append, *env]),
            "-drive", f"if=none,id=root,format=raw,file={a.guest}/root.ext4,snapshot=on,cache=unsafe",
            "-device", "virtio-blk-pci,drive=root",
            "-drive", f"if=none,id=files,format=raw,file={a.out}/files.tar,readonly=on",
            "-device", "virtio-blk-pci,drive=files",
            *args, "-serial", "chardev:console", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=out,name=out", "-device", "virtserialport,chardev=ctl,name=ctl",
            "-chardev", f"file,id=artefacts,path={a.out}/{self.role}.tar",
            "-device", "virtserialport,chardev=artefacts,name=artefacts",
        ]
        if net is not None:
            cmd += ["-netdev", f"dgram,id=n,local.type=fd,local.str={net}",
                    "-device", f"virtio-net-pci,netdev=n,host_mtu=4200,mac=52:54:00:09:00:{self.number:02x}"]
        log = open(f"{a.out}/{self.role}.qemu", "wb")
        self.proc = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[f for f in fds if f is not None])
        for fd in fds:
            if fd is not None:
                os.close(fd)
        for name, sock in self.streams.items():
            sock.setblocking(False)
            self.run.selector.register(sock, selectors.EVENT_READ, (self.read, name))

    @staticmethod
    def streams_wanted():
        return "console", "out", "ctl"

    def read(self, name):
        try:
            data = self.streams[name].recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.run.selector.unregister(self.streams[name])
            if name == "console":
                self.run.guest_gone(self)
            return
        self.files[name].write(data)
        *lines, self.tail[name] = (self.tail[name] + data).split(b"\n")
        for line in lines:
            getattr(self, "on_" + name)(line.decode(errors="replace").rstrip("\r"))

    def on_console(self, line):
        if SPLATS.search(line):
            if not self.splats:
                self.run.say(self, "!! " + line)
            self.splats.append(line)
        elif self.splats and len(self.splats) < 60:
            self.splats.append(line)
        elif self.run.args.verbose:
            self.run.say(self, "console: " + line)

    def on_out(self, line):
        self.run.say(self, line)

    def on_ctl(self, line):
        self.run.request(self, *line.split(" "))

    def answer(self, line):
        self.waits_for = None
        try:
            self.streams["ctl"].send(line.encode() + b"\n")
        except OSError:
            pass


class Run:
    def __init__(self, args):
        self.args = args
        self.start = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.guests = []
        self.words = {}
        self.failure = None
        for number, item in enumerate(args.roles.split(","), 1):
            role, _, script = item.partition("=")
            if not re.fullmatch(r"[a-z][a-z0-9_]*", role) or not os.path.isfile(script):
                raise SystemExit(f"error: --roles wants NAME=SCRIPT, and SCRIPT to be under the checkout, the cache or /tmp: {item}")
            self.guests.append(Guest(self, number, role, script))
        for path in args.files:
            if not os.path.exists(path):
                raise SystemExit(f"error: --files: there is no {path} (it must be under the checkout, the cache or /tmp)")
        if args.smp is None:
            args.smp = 1 if len(self.guests) > 1 or args.icount else 2

    def say(self, guest, text):
        prefix = f"{guest.role:>8}| " if len(self.guests) > 1 else ""
        print(prefix + text, flush=True)

    def pack(self):
        with tarfile.open(f"{self.args.out}/files.tar", "w") as tar:
            tar.add(HERE, "vm")
            for guest in self.guests:
                tar.add(guest.script, "scripts/" + os.path.basename(guest.script))
            for path in self.args.files:
                tar.add(path, os.path.basename(os.path.normpath(path)))
            extra = "".join(f"{shell_quote(word)}\n" for word in self.args.env).encode()
            info = tarfile.TarInfo("environment")
            info.size = len(extra)
            tar.addfile(info, io.BytesIO(extra))

    def network(self):
        """One end of the network for each guest: two are joined back to back, more by a switch that floods."""
        if self.args.no_net or len(self.guests) == 1:
            return [None] * len(self.guests)
        if len(self.guests) == 2:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        else:
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in self.guests]
            ends = [theirs for _, theirs in pairs]
            for ours, _ in pairs:
                others = [o for o, _ in pairs if o is not ours]
                self.selector.register(ours, selectors.EVENT_READ, (self.flood, (ours, others)))
        for guest, end in zip(self.guests, ends):
            guest.wire = end
        return [os.dup(end.fileno()) for end in ends]

    @staticmethod
    def flood(where):
        source, others = where
        try:
            frame = source.recv(65536, socket.MSG_DONTWAIT)
        except OSError:
            return
        for other in others:
            try:
                other.send(frame, socket.MSG_DONTWAIT)
            except OSError:
                pass

    def request(self, guest, verb, *words):
        if verb == "put" and len(words) >= 2:
            self.words[words[0]] = " ".join(words[1:])
            guest.answer("ok")
        elif verb in ("barrier", "get") and len(words) == 1:
            guest.waits_for = (verb, words[0])
        elif verb == "exit" and len(words) == 2:
            guest.code = int(words[0])
            guest.waits_for = ("exit", "")
            if int(words[1]) & ~TAINT_EXPECTED:
                guest.splats.append(f"the kernel is tainted: {words[1]}")
        elif verb == "power" and len(words) == 2:
            guest.answer(self.power(*words))
        else:
            guest.answer("fail bad request")
        self.settle()

    def power(self, role, what):
        for guest in self.guests:
            if guest.role == role and guest.proc.poll() is None:
                guest.expect_off = guest.expect_off or what == "off"
                guest.proc.send_signal({"off": signal.SIGKILL, "stop": signal.SIGSTOP, "cont": signal.SIGCONT}[what])
                # A machine that does not listen loses packets; it does not hold up those who send.
                if guest.wire and what == "cont":
                    self.selector.unregister(guest.wire)
                elif guest.wire:
                    self.selector.register(guest.wire, selectors.EVENT_READ, (self.flood, (guest.wire, [])))
                return "ok"
        return "fail no such guest"

    def settle(self):
        """Answers whoever waits for something that has come true, or never will."""
        present = [g for g in self.guests if not g.expect_off]
        ended = [g for g in present if g.code is not None]
        for guest in present:
            if guest.waits_for is None:
                continue
            kind, name = guest.waits_for
            if kind == "get" and name in self.words:
                guest.answer("ok " + self.words[name])
            elif kind == "barrier" and ended:
                guest.answer(f"fail {ended[0].role} has ended")
            elif kind == "get" and len(ended) == len(present) - 1:
                guest.answer("fail the others have ended")
        waits = {g.waits_for for g in present}
        if len(waits) == 1 and (wait := waits.pop()) and wait[0] == "barrier":
            for guest in present:
                guest.answer("ok")

    def guest_gone(self, guest):
        if guest.code is None and not guest.expect_off and self.failure is None:
            self.failure = f"{guest.role}: the guest stopped before its script ended"
        self.settle()

    def done(self):
        return self.failure or all(g.code is not None or g.expect_off for g in self.guests)

    def loop(self):
        for guest, net in zip(self.guests, self.network()):
            guest.boot(net)
        while not self.done():
            left = self.start + self.args.timeout - time.monotonic()
            if left <= 0:
                self.failure = f"not finished after {self.args.timeout} s"
                break
            for key, _ in self.selector.select(min(left, 1)):
                call, what = key.data
                call(what)
        # A guest that panicked says why in its last lines.
        until = time.monotonic() + (1 if self.failure else 0.1)
        while (left := until - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                call, what = key.data
                call(what)

    def stop(self):
        for guest in self.guests:
            if guest.proc and guest.proc.poll() is None:
                guest.proc.kill()
                guest.proc.wait()

    def report(self):
        ok = self.failure is None
        for guest in self.guests:
            if guest.splats:
                ok = False
                print(f"FAIL {guest.role}: the kernel complained:", *guest.splats[:60], sep="\n  ")
            if guest.code:
                ok = False
                print(f"FAIL {guest.role}: the script ended with exit code {guest.code}")
        if self.failure:
            print(f"FAIL {self.failure}")
            for guest in self.guests:
                if guest.code is None and not guest.expect_off and not guest.splats:
                    print(f"  last lines of {guest.role}'s console:")
                    with open(f"{self.args.out}/{guest.role}.console", errors="replace") as f:
                        print("   ", "    ".join(f.readlines()[-12:]))
        seconds = time.monotonic() - self.start
        with open(f"{self.args.out}/result.json", "w") as f:
            json.dump({"ok": ok, "failure": self.failure, "seconds": round(seconds, 1),
                       "guests": {g.role: {"code": g.code, "splats": g.splats} for g in self.guests}}, f, indent=1)
        for guest in self.guests:
            name = f"{self.args.out}/{guest.role}.tar"
            if os.path.exists(name) and os.path.getsize(name):
                with tarfile.open(name) as tar:
                    tar.extractall(f"{self.args.out}/{guest.role}", filter="data")
            if os.path.exists(name):
                os.unlink(name)
        os.unlink(f"{self.args.out}/files.tar")
        if not self.args.quiet:
            print(f"{'ok' if ok else 'FAILED'}: {len(self.guests)} guest(s), {seconds:.0f} s" + ("" if ok and self.args.temporary else f"; consoles and results in {self.args.out}"))
        return ok


def shell_quote(word):
    name, _, value = word.partition("=")
    return name + "='" + value.replace("'", "'\\''") + "'"


def main():
    p = argparse.ArgumentParser(prog="tools/vm/run", description="Boots one guest per role and runs a script in each, as root, with "
                                "rxe0 over the network that joins them (10.9.0.1, .2, ...; one guest alone has it over a dummy device).")
    p.add_argument("--roles", required=True, help="NAME=SCRIPT[,NAME=SCRIPT...]")
    p.add_argument("--files", nargs="*", default=[], help="files and folders for the guests' /farblk")
    p.add_argument("--env", nargs="*", default=[], help="NAME=VALUE for the scripts")
    p.add_argument("--smp", type=int, help="CPUs of each guest (2 for one guest, else 1)")
    p.add_argument("--mem", type=int, default=1024, help="MiB of each guest")
    p.add_argument("--icount", action="store_true", help="1 ns of guest time is 1 instruction")
    p.add_argument("--slab-debug", action="store_true", help="check all slabs for overruns and use after free (slower)")
    p.add_argument("--no-net", action="store_true", help="no network, no rxe")
    p.add_argument("--append", nargs="*", default=[], help="more words for the kernel command line")
    p.add_argument("--timeout", type=int, default=300, help="seconds for the whole run")
    p.add_argument("--out", help="folder for consoles, outputs and artefacts (kept)")
    p.add_argument("--verbose", action="store_true", help="show the consoles too")
    p.add_argument("--quiet", action="store_true", help="no closing line")
    p.add_argument("--guest", required=True, help=argparse.SUPPRESS)
    p.add_argument("--cache", required=True, help=argparse.SUPPRESS)
    args = p.parse_args()
    args.temporary = args.out is None
    args.out = os.path.abspath(args.out or f"{args.cache}/vm/{time.strftime('%m%d-%H%M%S')}-{os.getpid()}")
    os.makedirs(args.out, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(args)
    run.pack()
    try:
        run.loop()
    except KeyboardInterrupt:
        run.failure = "interrupted"
    finally:
        run.stop()
    ok = run.report()
    if ok and args.temporary:
        shutil.rmtree(args.out)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
