# SPDX-License-Identifier: GPL-2.0
"""Boots one guest per role, joins them by one network or more and runs each role's script; started by tools/vm/run.

The guest's side is tools/vm/guest. Each guest has three streams: its console, the output of its script (shown live), and
a control stream of one-line requests, each answered by one line ("ok [VALUE]" or "fail TEXT"):
  barrier NAME        answered when every role has reached NAME
  put KEY VALUE       leaves a word for the others
  get KEY [OFFSET LENGTH]   answered when KEY has been put, with all of it or so much
  power ROLE off|on   kills that guest at once, as a crashed machine; boots it again
  power ROLE stop|cont   freezes it, lets it go on
  net FAULT[=VALUE] [NETWORK [FROM TO]]   what is wrong from now on with packets (tools/vm/network.py lists it) from a role to
                      another, both ways by default, of one network (0, 1, ...) or all
  net count [NETWORK [FROM TO]]   packets there that are held, and that were lost
  tolerate on|off     what selftests/tolerated lists is no complaint meanwhile
  trace NAME MIB      answered when QEMU has logged so much of what the guest executes in OUT/ROLE.NAME.trace (--trace)
  exit CODE TAINT     the script has ended; answered when every role has ended
"""
import argparse
import glob
import io
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time

import instructions
import network
import tsc

HERE = os.path.dirname(os.path.abspath(__file__))


def expression(name):
    """One of the lists of regular expressions there."""
    with open(f"{HERE}/../../selftests/{name}", encoding="ascii") as lines:
        return re.compile("|".join(line for line in lines.read().splitlines() if not line.startswith("#")))


# Any of the first on a console fails the run, whatever the scripts say; the second only if nobody
# asked to tolerate it.
SPLATS, TOLERATED = expression("reports"), expression("tolerated")

# Bits of /proc/sys/kernel/tainted that our module sets by being unsigned (8192) and out of tree
# (4096), and a debug kernel by its own KUnit tests (262144); and a warning's.
TAINT_EXPECTED = 4096 | 8192 | 262144
TAINT_WARNING = 512

# A stock kernel stops at its first complaint. A debug kernel goes on, so that the test can say what
# caused it.
CMDLINE = {
    "stock": "panic_on_warn=1 oops=panic hung_task_panic=1 kfence.sample_interval=100 sysctl.kernel.hung_task_timeout_secs=60 "
             "rcupdate.rcu_cpu_stall_timeout=60",
    "debug": "kasan_multi_shot log_buf_len=1M dummy.numdummies=0 sysctl.kernel.hung_task_timeout_secs=120 rcupdate.rcu_cpu_stall_timeout=120",
}
# The caches of kmalloc() that --slab-debug checks. Larger objects hold packets, and to check them
# costs CPU time in each test that moves data.
SLABS = "8 16 32 64 96 128 192 256 512 1k 2k".split()
# The kselftest runner's word that a test has ended.
ENDED = re.compile(r"(?:not )?ok \d+ selftests: \S+: (\S+)")
X86 = "console=ttyS0 mitigations=off nokaslr tsc=reliable watchdog_thresh=30"
ARM64 = "console=ttyAMA0 mitigations=off watchdog_thresh=30 dummy.numdummies=0"
COMMON = "loglevel=5 net.ifnames=0 panic=-1 random.trust_cpu=on"


class Guest:
    """A machine, and what is known of the role that runs in it."""

    def __init__(self, run, number, role, script):
        self.run, self.number, self.role, self.script = run, number, role, script
        self.guest = run.args.guests.get(role, run.args.guest)
        self.streams = {}
        self.files = {name: open(f"{run.args.out}/{role}.{name}", "wb", buffering=0) for name in ("console", "out", "ctl")}
        self.splats = []
        self.tolerated = False  # it said something that was tolerated
        self.proc = None
        self.reset()

    def reset(self):
        """A machine that has not booted yet."""
        self.tail = {name: b"" for name in self.files}
        self.code = None  # of the script
        self.waits_for = None  # ("barrier"|"get"|"exit", name)
        self.part = slice(None)  # of what it gets
        self.expect_off = self.frozen = False

    def new_disk(self):
        """Gives it an empty disk, in memory: one of the host may be busy for longer than tests let I/O wait."""
        link = f"{self.run.args.out}/{self.role}.disk"
        self.memory = open(os.memfd_create(f"{self.role}.disk"), "wb")
        self.memory.truncate(self.run.args.disk << 20)
        if os.path.lexists(link):
            os.remove(link)
        os.symlink(f"/proc/{os.getpid()}/fd/{self.memory.fileno()}", link)

    def boot(self):
        a, fds = self.run.args, {}
        self.reset()
        # What the last life of the machine changed.
        if os.path.exists(f"{a.out}/{self.role}.cow"):
            os.unlink(f"{a.out}/{self.role}.cow")
        for name in self.tail:
            ours, theirs = socket.socketpair()
            self.streams[name] = ours
            fds[name] = theirs.detach()
        if a.trace:
            self.monitor = instructions.Monitor()
            fds["monitor"] = self.monitor.theirs.detach()
        nets = [os.dup(net.ports[self.number].end.fileno()) for net in self.run.networks]
        words = [COMMON, CMDLINE[a.kind], *a.append, f"ROLE={self.role}", f"NUMBER={self.number}"]
        words += ["ROLES=" + ",".join(g.role for g in self.run.guests), f"SCRIPT={os.path.basename(self.script)}"]
        words += [f"NET={'none' if a.no_net else self.netdev if nets else 'dummy'}", f"NETWORKS={a.networks}"]
        words += [f"DISK={self.disk}"] if a.disk else []
        passed = [*fds.values(), *nets]
        with open(f"{a.out}/{self.role}.log", "ab") as log:
            self.proc = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self.command(fds, nets, words)],
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=passed,
                                         start_new_session=True, env={**os.environ, **self.environment})
        for fd in passed:
            os.close(fd)
        for name, sock in self.streams.items():
            sock.setblocking(False)
            self.run.selector.register(sock, selectors.EVENT_READ, (self.read, name))

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def cpu(self):
        """Seconds of CPU time that it took: its processes, and those of User Mode Linux that have ended."""
        ticks = 0
        for stat in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(stat, encoding="ascii", errors="replace") as f:
                    fields = f.read().rpartition(")")[2].split()
            except OSError:
                continue
            if self.proc and int(fields[3]) == self.proc.pid:
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill(self):
        """Takes the plug out."""
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self):
        """Takes what a machine that is off said last."""
        for name, stream in self.streams.items():
            until = time.monotonic() + 1
            while stream in self.run.selector.get_map() and time.monotonic() < until:
                self.read(name)
            if stream in self.run.selector.get_map():
                self.run.selector.unregister(stream)
            stream.close()

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
        if self.run.tolerates and TOLERATED.search(line):
            self.tolerated = True
        elif SPLATS.search(line):
            if not self.splats and not self.run.args.expect_reports:
                self.run.say(self, "!! " + line)
            self.splats.append(line)
        elif self.splats and len(self.splats) < 60:
            self.splats.append(line)
        elif self.run.args.verbose:
            self.run.say(self, "console: " + line)

    def on_out(self, line):
        self.run.say(self, line)
        if ended := ENDED.match(line):
            self.run.took(ended[1])

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

    netdev, disk = "eth", "/dev/vdc"
    environment = {}
    kernel, nic = "vmlinux", ""

    def board(self, accel):
        """The program with the machine, and the words for its kernel."""
        a = self.run.args
        # QEMU emulates "rep movsb" byte by byte: a copy would take so long, and so many
        # instructions, that it is most of what a bench measures.
        cpu = "max,-erms,-fsrm,-fzrm,-fsrs,-fsrc"
        # Counted instructions make a clock of their own.
        words = [X86] if a.icount or tsc.khz() is None else [X86, f"tsc_early_khz={tsc.khz()}"]
        cmd = ["qemu-system-x86_64", "-M", "q35", "-cpu", cpu, *accel]
        if a.iommu:
            # Before all devices that it is to translate for. Strict: what was unmapped is gone at
            # once.
            cmd += ["-device", "intel-iommu"]
            words.append("intel_iommu=on iommu.strict=1 iommu.passthrough=0")
        return cmd, words

    def command(self, fds, nets, words):
        a = self.run.args
        accel = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"] if a.icount else ["-accel", "tcg,thread=multi"]
        board, own = self.board(accel)
        if a.slab_debug:
            words.append("slab_debug=FZP," + ",".join(f"kmalloc-{size}" for size in SLABS))
        cmd = [
            *board, "-nodefaults", "-no-user-config", "-display", "none",
            "-no-reboot", "-smp", str(a.smp), "-m", str(a.mem), "-name", self.role,
            "-kernel", f"{self.guest}/{self.kernel}", "-initrd", f"{self.guest}/initramfs", "-append", " ".join([*own, *words]),
            "-drive", f"if=none,id=root,format=raw,file={self.guest}/root.ext4,snapshot=on,cache=unsafe",
            "-device", "virtio-blk-pci,drive=root",
            "-drive", f"if=none,id=files,format=raw,file={a.out}/files.tar,readonly=on",
            "-device", "virtio-blk-pci,drive=files",
            *[arg for name in self.tail for arg in ("-chardev", f"socket,id={name},fd={fds[name]}")],
            "-serial", "chardev:console", "-device", "virtio-serial-pci",
            "-device", "virtserialport,chardev=out,name=out", "-device", "virtserialport,chardev=ctl,name=ctl",
            "-chardev", f"file,id=artefacts,path={a.out}/{self.role}.tar",
            "-device", "virtserialport,chardev=artefacts,name=artefacts",
        ]
        if a.trace:
            cmd += ["-chardev", f"socket,id=monitor,fd={fds['monitor']}", "-mon", "chardev=monitor,mode=control"]
        if a.disk:
            cmd += ["-drive", f"if=none,id=disk,format=raw,file={a.out}/{self.role}.disk,cache=unsafe",
                    "-device", "virtio-blk-pci,drive=disk,write-cache=off,serial=farblk-disk"]
        cmd += ["-device", "edu"] * a.edu
        for n, fd in enumerate(nets):
            cmd += ["-netdev", f"dgram,id=n{n},local.type=fd,local.str={fd}",
                    "-device", f"virtio-net-pci,netdev=n{n},host_mtu=4200,mac=52:54:00:09:{n:02x}:{self.number:02x}{self.nic}"]
        return cmd


class Arm64(Qemu):
    """An Arm server."""

    # Without firmware nobody boots from the network.
    kernel, nic = "Image", ",romfile="

    def board(self, accel):
        if self.run.args.iommu:
            raise SystemExit("error: --iommu is for a PC only")
        # A CPU of servers: it has the atomic instructions and 64 KiB pages, but no pointer
        # authentication, which is slow to emulate.
        return ["qemu-system-aarch64", "-M", "virt,gic-version=3", "-cpu", "neoverse-n1", *accel], [ARM64]


class Uml(Guest):
    """User Mode Linux: the kernel is a program of ours."""

    netdev, disk = "vec", "/dev/ubdc"
    # Its memory is a file, and goes here.
    environment = {"TMPDIR": "/dev/shm"}

    def command(self, fds, nets, words):
        a = self.run.args
        cmd = [
            f"{self.guest}/linux", f"mem={a.mem}M", f"initrd={self.guest}/initramfs", f"uml_dir={a.out}/", f"umid={self.role}",
            f"ubd0={a.out}/{self.role}.cow,{self.guest}/root.ext4", f"ubd1r={a.out}/files.tar", f"hostfs={a.out}",
            # Of its two ways to run user space the first is the faster, the second knows more than
            # one CPU.
            "seccomp=off" if a.smp == 1 else "seccomp=on", f"ncpus={a.smp}",
            f"con0=null,fd:{fds['console']}", "con=null", f"ssl0=fd:{fds['out']}", f"ssl1=fd:{fds['ctl']}",
            *" ".join(words).split(),
        ]
        if a.disk:
            cmd += [f"ubd2={a.out}/{self.role}.disk"]
        cmd += [f"vec{n}:transport=fd,fd={fd},mtu=4200,mac=52:54:00:09:{n:02x}:{self.number:02x}" for n, fd in enumerate(nets)]
        return cmd


class Run:
    machine = Qemu

    def __init__(self, args):
        self.args = args
        self.start = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.guests = []
        self.networks = []
        self.words = {}
        self.failure = None
        self.tolerates = False
        self.seed = random.randrange(1 << 32) if args.seed is None else args.seed
        self.seed_said = False
        self.before = (self.start, 0)
        for number, item in enumerate(args.roles.split(","), 1):
            role, _, script = item.partition("=")
            if not re.fullmatch(r"[a-z][a-z0-9_]*", role) or not os.path.isfile(script):
                raise SystemExit(f"error: --roles wants NAME=SCRIPT, and SCRIPT to be under the checkout, the cache or /tmp: {item}")
            self.guests.append(self.machine_of(args.guests.get(role, args.guest))(self, number, role, script))
        for path in args.files:
            if not os.path.exists(path):
                raise SystemExit(f"error: --files: there is no {path} (it must be under the checkout, the cache or /tmp)")
        if args.smp is None:
            alone = len(self.guests) == 1 or args.kind == "debug"
            args.smp = 2 if alone and not args.icount and not args.uml else 1
        if args.uml and (args.icount or args.trace):
            raise SystemExit("error: User Mode Linux does not count instructions, nor log them")

    def machine_of(self, guest):
        """What boots that folder."""
        for image, machine in ("linux", Uml), ("Image", Arm64):
            if os.path.exists(f"{guest}/{image}"):
                return machine
        return self.machine

    def say(self, guest, text):
        prefix = f"{guest.role:>8}| " if len(self.guests) > 1 else ""
        print(prefix + text, flush=True)

    def took(self, test):
        """Says how long a test took, and how much of the CPUs."""
        now = (time.monotonic(), sum(guest.cpu() for guest in self.guests))
        # A guest that was turned off took its CPU time with it.
        seconds, cpu = (max(0, a - b) for a, b in zip(now, self.before))
        self.before = now
        print(f"# {test}: {seconds:.0f} s, {cpu:.0f} s of CPU time", flush=True)

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

    def request(self, guest, verb, *words):
        if verb == "put" and len(words) >= 2:
            self.words[words[0]] = " ".join(words[1:])
            guest.answer("ok")
        elif verb == "barrier" and len(words) == 1:
            guest.waits_for = (verb, words[0])
        elif verb == "get" and len(words) in (1, 3):
            guest.waits_for = (verb, words[0])
            offset, length = map(int, words[1:] or (0, 1 << 30))
            guest.part = slice(offset, offset + length)
        elif verb == "exit" and len(words) == 2:
            guest.code = int(words[0])
            guest.waits_for = ("exit", "")
            if int(words[1]) & ~(TAINT_EXPECTED | (TAINT_WARNING if guest.tolerated else 0)):
                guest.splats.append(f"the kernel is tainted: {words[1]}")
        elif verb == "power" and len(words) == 2:
            guest.answer(self.power(*words))
        elif verb == "net" and words:
            guest.answer(self.net(*words))
        elif verb == "trace" and len(words) == 2 and self.args.trace:
            guest.waits_for = (verb, words[0])
            guest.monitor.log(f"{self.args.out}/{guest.role}.{words[0]}.trace", int(words[1]) << 20, guest.answer)
        elif verb == "tolerate" and len(words) == 1:
            self.tolerates = words[0] == "on"
            guest.answer("ok")
        else:
            guest.answer("fail bad request")
        self.settle()

    def power(self, role, what):
        guest = next((g for g in self.guests if g.role == role), None)
        if guest and what == "on" and not guest.alive():
            guest.boot()
            return "ok"
        if not guest or not guest.alive():
            return "fail no such guest"
        if what == "off":
            guest.expect_off = True
            guest.kill()
            guest.proc.wait()
            guest.close()
            return "ok"
        if what in ("stop", "cont"):
            guest.frozen = what == "stop"
            guest.proc.send_signal(signal.SIGSTOP if guest.frozen else signal.SIGCONT)
            return "ok"
        return "fail bad request"

    def net(self, what, number=None, *roles):
        """Makes a fault, or counts packets."""
        fault, _, value = what.partition("=")
        known = fault == "count" or fault in network.PLAIN and not value
        if not known and not (fault in network.WITH_VALUE and re.fullmatch(r"\d+(\.\d+)?", value)):
            return "fail no such fault"
        numbers = {g.role: g.number for g in self.guests}
        if len(roles) not in (0, 2) or not numbers.keys() >= set(roles):
            return "fail no such direction"
        ways = [tuple(numbers[role] for role in roles)] if roles else \
            [(a, b) for a in numbers.values() for b in numbers.values() if a != b]
        networks = [n for n in self.networks if number in (None, "all", str(n.number))]
        if not networks:
            return "fail no such network"
        if fault == "count":
            return f"ok {sum(n.held_on(ways) for n in networks)} {sum(n.lost_on(ways) for n in networks)}"
        if fault in network.WITH_VALUE and not self.seed_said:
            self.seed_said = True
            print(f"network: --seed {self.seed}", flush=True)
        for n in networks:
            n.fault(ways, fault, float(value or 0))
        return "ok"

    def settle(self):
        """Answers each guest that waits for something that has come true, or never will."""
        present = [g for g in self.guests if not g.expect_off]
        ended = [g for g in present if g.code is not None]
        for guest in self.guests:
            if guest.waits_for is None:
                continue
            kind, name = guest.waits_for
            # Also one that is about to be turned off.
            if kind == "get" and name in self.words:
                guest.answer("ok " + self.words[name][guest.part])
            elif kind == "barrier" and ended and guest in present:
                guest.answer(f"fail {ended[0].role} has ended")
        left = [g for g in present if g.code is None]
        if ended and all(g.waits_for and g.waits_for[0] == "get" for g in left):
            for guest in left:
                guest.answer("fail the others have ended, or wait, too")
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
        if not self.args.no_net and len(self.guests) > 1:
            rng = random.Random(self.seed)
            self.networks = [network.Network(n, self.guests, self.selector, rng) for n in range(self.args.networks)]
        for guest in self.guests:
            if self.args.disk:
                guest.new_disk()
            guest.boot()
        tick = 0
        while not self.done():
            left = self.start + self.args.timeout - time.monotonic()
            if left <= 0:
                self.failure = f"not finished after {self.args.timeout} s"
                break
            due = [wait for net in self.networks if (wait := net.tick()) is not None]
            for key, _ in self.selector.select(min(left, 0.2, *due)):
                call, what = key.data
                call(what)
            if time.monotonic() >= tick:
                for net in self.networks:
                    net.drop_what_nobody_takes()
                tick = time.monotonic() + 0.2
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
            for rest in ("cow", "disk"):
                if os.path.exists(f"{self.args.out}/{guest.role}.{rest}"):
                    os.unlink(f"{self.args.out}/{guest.role}.{rest}")
            if os.path.exists(f"{self.args.out}/{guest.role}/mconsole"):
                os.unlink(f"{self.args.out}/{guest.role}/mconsole")
        os.unlink(f"{self.args.out}/files.tar")
        if not self.args.quiet:
            print(f"{'ok' if ok else 'FAILED'}: {len(self.guests)} guest(s), {seconds:.0f} s" + ("" if ok and self.args.temporary else f"; consoles and results in {self.args.out}"))
        return ok


def shell_quote(word):
    name, _, value = word.partition("=")
    return name + "='" + value.replace("'", "'\\''") + "'"


def arguments(words=None):
    """The command line, and what follows from it."""
    p = argparse.ArgumentParser(prog="tools/vm/run", description="Boots one guest per role and runs a script in each, as root, with "
                                "rxe0 over the network that joins them (10.9.0.1, .2, ...; one guest alone has it over a dummy device).")
    p.add_argument("--roles", required=True, help="NAME=SCRIPT[,NAME=SCRIPT...]")
    p.add_argument("--files", nargs="*", default=[], help="files and folders for the guests' /farblk")
    p.add_argument("--env", nargs="*", default=[], help="NAME=VALUE for the scripts")
    p.add_argument("--smp", type=int, help="CPUs of each guest (2 for one guest and for the debug kernel, else 1)")
    p.add_argument("--mem", type=int, default=1024, help="MiB of each guest")
    p.add_argument("--icount", action="store_true", help="1 ns of guest time is 1 instruction")
    p.add_argument("--trace", action="store_true", help="let the scripts have what they execute logged")
    p.add_argument("--slab-debug", action="store_true", help="check what kmalloc gives, up to 2 KiB, for overruns and use after free (slower)")
    p.add_argument("--networks", type=int, default=1, help="networks that join them: network 1 has rxe1 and 10.9.1.1, .2, ...")
    p.add_argument("--seed", type=int, help="of the random numbers that the faults of networks take")
    p.add_argument("--disk", type=int, default=0, help="MiB of a disk that each guest has besides, and that power cycles leave alone")
    p.add_argument("--edu", type=int, default=0, help="PCI functions that tools/testhca can take")
    p.add_argument("--iommu", action="store_true", help="an IOMMU, which translates what PCI functions address")
    p.add_argument("--no-net", action="store_true", help="no network, no RDMA device")
    p.add_argument("--expect-reports", action="store_true", help="the kernel is meant to complain: the scripts alone decide")
    p.add_argument("--append", nargs="*", default=[], help="more words for the kernel command line")
    p.add_argument("--timeout", type=int, default=300, help="seconds for the whole run")
    p.add_argument("--out", help="folder for consoles, outputs and artefacts (kept)")
    p.add_argument("--verbose", action="store_true", help="show the consoles too")
    p.add_argument("--quiet", action="store_true", help="no closing line")
    p.add_argument("--guest", required=True, help=argparse.SUPPRESS)
    p.add_argument("--guest-of", nargs="*", default=[], help=argparse.SUPPRESS)
    p.add_argument("--kind", choices=CMDLINE, required=True, help=argparse.SUPPRESS)
    p.add_argument("--cache", required=True, help=argparse.SUPPRESS)
    args = p.parse_args(words)
    args.guests = dict(item.split("=", 1) for item in args.guest_of)
    args.uml = os.path.exists(f"{args.guest}/linux")
    args.temporary = args.out is None
    args.out = os.path.abspath(args.out or f"{args.cache}/vm/{time.strftime('%m%d-%H%M%S')}-{os.getpid()}")
    os.makedirs(args.out, exist_ok=True)
    return args


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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
