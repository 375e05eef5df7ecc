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

# Any of these on a console fails the run, whatever the scripts say.
with open(f"{HERE}/../../selftests/reports", encoding="ascii") as reports:
    SPLATS = re.compile("|".join(line for line in reports.read().splitlines() if not line.startswith("#")))

# Bits of /proc/sys/kernel/tainted that our module sets by being unsigned (8192) and out of tree (4096), and a debug kernel
# by its own KUnit tests (262144).
TAINT_EXPECTED = 4096 | 8192 | 262144

# A stock kernel stops at its first complaint. A debug kernel goes on, so that the test can say what caused it.
CMDLINE = {
    "stock": "panic_on_warn=1 oops=panic hung_task_panic=1 kfence.sample_interval=100 sysctl.kernel.hung_task_timeout_secs=60 "
             "rcupdate.rcu_cpu_stall_timeout=60",
    "debug": "kasan_multi_shot log_buf_len=1M dummy.numdummies=0 sysctl.kernel.hung_task_timeout_secs=120 rcupdate.rcu_cpu_stall_timeout=120",
}
X86 = "console=ttyS0 mitigations=off nokaslr tsc=reliable watchdog_thresh=30"
COMMON = "loglevel=5 net.ifnames=0 panic=-1 random.trust_cpu=on"


class Guest:
    """A machine, and what is known of the role that runs in it."""

    def __init__(self, run, number, role, script):
        self.run, self.number, self.role, self.script = run, number, role, script
        self.tail = {"console": b"", "out": b"", "ctl": b""}
        self.streams = {}
        self.files = {}
        self.code = None  # of the script
        self.waits_for = None  # ("barrier"|"get"|"exit", name)
        self.expect_off = False
        self.wire = None  # its end of the network
        self.waiting = None  # the packet there that it did not take yet; b"" after they were dropped
        self.deaf = 0  # seconds for which it did not take that
        self.splats = []
        self.proc = None

    def boot(self, net):
        a, fds = self.run.args, {}
        for name in self.tail:
            ours, theirs = socket.socketpair()
            self.streams[name] = ours
            self.files[name] = open(f"{a.out}/{self.role}.{name}", "wb", buffering=0)
            fds[name] = theirs.detach()
        if net is not None:
            fds["net"] = net
        words = [COMMON, CMDLINE[a.kind], *a.append, f"ROLE={self.role}", f"NUMBER={self.number}"]
        words += ["ROLES=" + ",".join(g.role for g in self.run.guests), f"SCRIPT={os.path.basename(self.script)}"]
        words += [f"NET={'none' if a.no_net else 'dummy0' if net is None else self.netdev}"]
        log = open(f"{a.out}/{self.role}.log", "wb")
        self.proc = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self.command(fds, words)], stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log, pass_fds=list(fds.values()), start_new_session=True,
                                     env={**os.environ, **self.environment})
        for fd in fds.values():
            os.close(fd)
        for name, sock in self.streams.items():
            sock.setblocking(False)
            self.run.selector.register(sock, selectors.EVENT_READ, (self.read, name))

    def kill(self):
        """Takes the plug out."""
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

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
            if not self.splats and not self.run.args.expect_reports:
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


class Qemu(Guest):
    """A PC."""

    netdev = "eth0"
    environment = {}

    def command(self, fds, words):
        a = self.run.args
        accel = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"] if a.icount else ["-accel", "tcg,thread=multi"]
        if a.slab_debug:
            words.append("slab_debug=FZP,kmalloc-*")
        cmd = [
            "qemu-system-x86_64", "-M", "q35", "-nodefaults", "-no-user-config", "-display", "none",
            "-no-reboot", "-cpu", "max", *accel, "-smp", str(a.smp), "-m", str(a.mem), "-name", self.role,
            "-kernel", f"{a.guest}/vmlinux", "-initrd", f"{a.guest}/initramfs", "-append", " ".join([X86, *words]),
            "-drive", f"if=none,id=root,format=raw,file={a.guest}/root.ext4,snapshot=on,cache=unsafe",
            "-device", "virtio-blk-pci,drive=root",
            "-drive", f"if=none,id=files,format=raw,file={a.out}/files.tar,readonly=on",
            "-device", "virtio-blk-pci,drive=files",
            *[arg for name in self.tail for arg in ("-chardev", f"socket,id={name},fd={fds[name]}")],
            "-serial", "chardev:console", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=out,name=out", "-device", "virtserialport,chardev=ctl,name=ctl",
            "-chardev", f"file,id=artefacts,path={a.out}/{self.role}.tar",
            "-device", "virtserialport,chardev=artefacts,name=artefacts",
        ]
        if "net" in fds:
            cmd += ["-netdev", f"dgram,id=n,local.type=fd,local.str={fds['net']}",
                    "-device", f"virtio-net-pci,netdev=n,host_mtu=4200,mac=52:54:00:09:00:{self.number:02x}"]
        return cmd


class Uml(Guest):
    """User Mode Linux: the kernel is a program of ours."""

    netdev = "vec0"
    # Its memory is a file, and goes here.
    environment = {"TMPDIR": "/dev/shm"}

    def command(self, fds, words):
        a = self.run.args
        cmd = [
            f"{a.guest}/linux", f"mem={a.mem}M", f"initrd={a.guest}/initramfs", f"uml_dir={a.out}/", f"umid={self.role}",
            f"ubd0={a.out}/{self.role}.cow,{a.guest}/root.ext4", f"ubd1r={a.out}/files.tar", f"hostfs={a.out}",
            # Of its two ways to run user space the first is the faster, the second knows more than one CPU.
            "seccomp=off" if a.smp == 1 else "seccomp=on", f"ncpus={a.smp}",
            f"con0=null,fd:{fds['console']}", "con=null", f"ssl0=fd:{fds['out']}", f"ssl1=fd:{fds['ctl']}",
            *" ".join(words).split(),
        ]
        if "net" in fds:
            cmd += [f"vec0:transport=fd,fd={fds['net']},mtu=4200,mac=52:54:00:09:00:{self.number:02x}"]
        return cmd


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
            self.guests.append((Uml if args.uml else Qemu)(self, number, role, script))
        for path in args.files:
            if not os.path.exists(path):
                raise SystemExit(f"error: --files: there is no {path} (it must be under the checkout, the cache or /tmp)")
        if args.smp is None:
            alone = len(self.guests) == 1 or args.kind == "debug"
            args.smp = 2 if alone and not args.icount and not args.uml else 1
        if args.uml and args.icount:
            raise SystemExit("error: User Mode Linux does not count instructions")

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

    def drop_what_nobody_takes(self):
        """A machine that is frozen, or whose link is down, loses packets: it does not hold up those who send.

        Called each second. A busy machine may let a packet wait for a while, and rxe does not stand losses."""
        for guest in self.guests:
            if guest.wire is None:
                continue
            try:
                packet = guest.wire.recv(65536, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                packet = None
            if packet and packet == guest.waiting:
                guest.deaf += 1
            else:
                guest.deaf = 4 if guest.waiting == b"" else 0
            guest.waiting = packet
            if guest.deaf >= 5:
                guest.waiting = b""
                try:
                    while True:
                        guest.wire.recv(65536, socket.MSG_DONTWAIT)
                except BlockingIOError:
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
                if what == "off":
                    guest.kill()
                else:
                    guest.proc.send_signal({"stop": signal.SIGSTOP, "cont": signal.SIGCONT}[what])
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
        tick = 0
        while not self.done():
            left = self.start + self.args.timeout - time.monotonic()
            if left <= 0:
                self.failure = f"not finished after {self.args.timeout} s"
                break
            for key, _ in self.selector.select(min(left, 1)):
                call, what = key.data
                call(what)
            if time.monotonic() >= tick:
                self.drop_what_nobody_takes()
                tick = time.monotonic() + 1
        # A guest that panicked says why in its last lines.
        until = time.monotonic() + (1 if self.failure else 0.1)
        while (left := until - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                call, what = key.data
                call(what)

    def stop(self):
        for guest in self.guests:
            if guest.proc:
                guest.kill()
                guest.proc.wait()

    def report(self):
        ok = self.failure is None
        for guest in self.guests:
            if guest.splats and not self.args.expect_reports:
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
            for rest in (f"{self.args.out}/{guest.role}.cow", f"{self.args.out}/{guest.role}/mconsole"):
                if os.path.exists(rest):
                    os.unlink(rest)
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
    p.add_argument("--smp", type=int, help="CPUs of each guest (2 for one guest and for the debug kernel, else 1)")
    p.add_argument("--mem", type=int, default=1024, help="MiB of each guest")
    p.add_argument("--icount", action="store_true", help="1 ns of guest time is 1 instruction")
    p.add_argument("--slab-debug", action="store_true", help="check what kmalloc gives for overruns and use after free (slower)")
    p.add_argument("--no-net", action="store_true", help="no network, no rxe")
    p.add_argument("--expect-reports", action="store_true", help="the kernel is meant to complain: the scripts alone decide")
    p.add_argument("--append", nargs="*", default=[], help="more words for the kernel command line")
    p.add_argument("--timeout", type=int, default=300, help="seconds for the whole run")
    p.add_argument("--out", help="folder for consoles, outputs and artefacts (kept)")
    p.add_argument("--verbose", action="store_true", help="show the consoles too")
    p.add_argument("--quiet", action="store_true", help="no closing line")
    p.add_argument("--guest", required=True, help=argparse.SUPPRESS)
    p.add_argument("--kind", choices=CMDLINE, required=True, help=argparse.SUPPRESS)
    p.add_argument("--cache", required=True, help=argparse.SUPPRESS)
    args = p.parse_args()
    args.uml = os.path.exists(f"{args.guest}/linux")
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
