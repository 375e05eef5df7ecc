# SPDX-License-Identifier: GPL-2.0
"""Reboots a server and a client that have systemd, and looks whether everything comes back; started by tools/vm/boot.

The machines are those of harness.py, with a root that they keep. In each boot an agent (guest/agent) runs the lines of shell
that a scenario sends. A scenario is a function of Scenarios; it runs in a thread of its own, and all that concerns the
machines is done by the harness's.

Long: half of it are the scenarios, one after the other.
"""
import argparse
import base64
import os
import queue
import shutil
import signal
import selectors
import socket
import subprocess
import sys
import threading
import time

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.abspath(f"{HERE}/../..")

# I/O waits for as long as the machines of a test take to boot.
APPEND = ["SYSTEMD=1", "panic_on_warn=0", "sysctl.kernel.hung_task_timeout_secs=900", "systemd.show_status=0"]
# Seconds in which a machine boots, on a host that has other things to do, too.
BOOT = 900
# Seconds in which a shutdown has to be complete, and in which a client has its export back.
POWER_OFF, BACK = 90, 5
# How long the server stays away in server_is_late.
LATE = 60


class Failed(Exception):
    """A scenario has failed."""


class Machine(harness.Qemu):
    """A PC whose root keeps what is written to it, and that can reboot by itself."""

    # When the kernel ended its last boot, which is its last line on the console.
    restarted = None

    def on_console(self, line):
        if "reboot: Restarting system" in line:
            self.restarted = time.monotonic()
        super().on_console(line)

    def command(self, fds, nets, words):
        root = f"{self.run.args.out}/{self.role}.root"
        cmd = [word for word in super().command(fds, nets, words) if word != "-no-reboot"]
        drive = next(n for n, word in enumerate(cmd) if word.startswith("if=none,id=root,"))
        cmd[drive] = f"if=none,id=root,format=raw,file={root},cache=unsafe"
        return cmd


class Run(harness.Run):
    """The machines, and a thread with the scenarios."""

    machine = Machine

    def __init__(self, args, scenarios):
        super().__init__(args)
        self.scenarios = scenarios
        self.ended = False
        self.calls = queue.Queue()
        self.changed = threading.Condition()
        self.wakeup, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self.selector.register(wakeup, selectors.EVENT_READ, (self.called, wakeup))
        # Losing packets is what a reboot does to rxe.
        self.tolerates = True

    def called(self, wakeup):
        try:
            wakeup.recv(4096)
        except BlockingIOError:
            pass
        while not self.calls.empty():
            call, done = self.calls.get()
            try:
                done.append(call())
            except Exception as e:  # it belongs to the scenario
                done.append(e)
            with self.changed:
                self.changed.notify_all()

    def do(self, call):
        """Lets the harness's thread call that, and gives the result; for the thread of the scenarios."""
        done = []
        self.calls.put((call, done))
        self.wakeup.send(b"!")
        with self.changed:
            if not self.changed.wait_for(lambda: done or self.failure, 60) or not done:
                raise Failed(self.failure or "the harness does not answer")
        if isinstance(done[0], Exception):
            raise done[0]
        return done[0]

    def request(self, guest, verb, *words):
        super().request(guest, verb, *words)
        with self.changed:
            self.changed.notify_all()

    def guest_gone(self, guest):
        super().guest_gone(guest)
        with self.changed:
            self.changed.notify_all()

    def done(self):
        return self.failure or self.ended

    def loop(self):
        def scenarios():
            try:
                self.scenarios(self)
            except Exception as e:
                self.failure = f"the scenarios ended with {e!r}"
            self.ended = True
            self.wakeup.send(b"!")

        for guest in self.guests:
            fresh(guest)
        threading.Thread(target=scenarios, daemon=True).start()
        super().loop()


def fresh(guest):
    """Gives a machine the root of one that has never booted, and an empty disk."""
    out = guest.run.args.out
    shutil.copyfile(f"{guest.run.args.guest}/root.ext4", f"{out}/{guest.role}.root")
    guest.new_disk()


class Host:
    """One of the machines, as a scenario sees it."""

    def __init__(self, run, role):
        self.run, self.role = run, role
        self.guest = next(g for g in run.guests if g.role == role)
        self.boot_id, self.number = None, 0

    def word(self, key):
        return self.run.words.get(key)

    def wait(self, what, condition, seconds):
        start = time.monotonic()
        with self.run.changed:
            while not (value := condition()):
                left = start + seconds - time.monotonic()
                if self.run.failure or left <= 0:
                    raise Failed(self.run.failure or f"{self.role}: {what}: not within {seconds} s")
                self.run.changed.wait(min(left, 1))
        return value

    def booted(self, seconds=BOOT):
        """Waits until the agent of another boot than the last one is there."""
        boot = self.wait("to boot", lambda: (b := self.word(f"{self.role}-boot")) != self.boot_id and b, seconds)
        self.boot_id, self.number = boot, 0

    def try_(self, line, seconds=300):
        """Runs a line of shell; its exit code and its output."""
        self.number += 1
        key = f"{self.role}-{self.boot_id}-%s-{self.number}"

        def send():
            self.run.words[key % "line"] = base64.b64encode(line.encode()).decode()
            self.run.settle()

        self.run.do(send)
        answer = self.wait(line, lambda: self.word(key % "answer"), seconds)
        code, _, text = answer.partition(" ")
        return int(code), base64.b64decode(text).decode(errors="replace")

    def sh(self, line, seconds=300):
        """Runs a line of shell that must succeed; its output."""
        code, text = self.try_(line, seconds)
        if code:
            raise Failed(f"{self.role}: exit code {code} of: {line}\n{text}")
        return text.strip()

    def is_(self, line, want):
        have = self.sh(line)
        if have != want:
            raise Failed(f"{self.role}: {line}: {have!r}, not {want!r}")

    def until(self, line, seconds=300):
        """Runs a line of shell until it succeeds. The guest repeats it: each program takes it a good part of a second."""
        code, text = self.try_(f"end=$((SECONDS + {seconds})); until {{ {line}; }}; do [ $SECONDS -lt $end ] || exit 99; sleep 0.5; done",
                               seconds + 60)
        if code:
            raise Failed(f"{self.role}: not within {seconds} s: {line}\n{text[-2000:]}")

    def reboot(self):
        self.guest.restarted, self.began = None, time.monotonic()
        self.sh("systemctl reboot --no-block")

    def down(self, seconds=POWER_OFF):
        """Waits until the boot that reboot() ends is over; the seconds that this took. A hang would pass as a slow boot."""
        left = self.began + seconds - time.monotonic()
        took = self.wait("to end its boot", lambda: self.guest.restarted, max(left, 0)) - self.began
        if took > seconds:
            raise Failed(f"{self.role}: the boot has ended after {took:.0f} s, not within {seconds} s")
        return took

    def power_off(self, seconds=POWER_OFF):
        """Shuts down in an orderly way; the seconds until the machine is off."""
        self.run.do(lambda: setattr(self.guest, "expect_off", True))
        start = time.monotonic()
        self.sh("systemctl poweroff --no-block")
        while self.guest.alive():
            if time.monotonic() - start > seconds + 60:
                raise Failed(f"{self.role}: not off after {seconds + 60} s")
            time.sleep(0.1)
        took = time.monotonic() - start
        self.run.do(self.guest.close)
        if took > seconds:
            raise Failed(f"{self.role}: off after {took:.0f} s, not within {seconds} s")
        return took

    def power_on(self):
        self.run.do(self.guest.boot)

    def ready(self, seconds=BOOT):
        """Waits until a boot that has begun is complete."""
        self.booted(seconds)
        self.until("[ -e /run/guest-ready ]", seconds)


class Scenarios:
    """What is tried. Each begins with both machines up, the maps live and the file systems mounted, and ends so."""

    NAMES = ["coldplug", "names", "by_hand", "client_reboots", "server_reboots", "both_reboot", "server_is_late",
             "power_off_alone", "mirror", "swap", "clients_volumes"]

    FILL = "for d in {}; do cd $d && head -c 4M /dev/urandom >a && cp /usr/bin/bash b && sha256sum a b >sums && sync; done"

    def __init__(self, run):
        self.run = run
        self.server, self.client = (Host(run, role) for role in ("server", "client"))

    # --- preparation ---

    def prepare(self):
        """What an administrator does, once."""
        server, client = self.server, self.client
        for host in server, client:
            host.ready()
            host.sh("systemctl enable --now farblk-rxe@eth0 && rdma link show | grep -q rxe_eth0/1")
            host.sh("modprobe farblk")
        client.sh("udevadm verify --resolve-names=never --no-style /usr/lib/udev/rules.d/*farblk*.rules && cd /usr/lib/systemd/system && "
                  "systemd-analyze verify --man=no farblk-server.service farblk-map@x.service farblk-swap@x.service farblk-rxe@eth0.service "
                  "farblk-shutdown.service")
        server.sh("farblk port add --addr 10.9.0.1")
        server.sh("farblk export create vol1 --device /dev/disk/by-id/virtio-farblk-disk --allow client --max-clients 1")
        server.sh("farblk export create vol2 --file /srv/vol2 --size 48M --allow client")
        server.sh("farblk export create scratch --ram 16M --allow client")
        server.sh("farblk config save && systemctl enable --now farblk-server")
        for name in "vol1", "vol2", "scratch":
            client.sh(f"farblk map server/{name} --no-path-timeout forever --wait 30s")
        # Units unmap only what they have made.
        client.sh("farblk config save && udevadm settle && for name in vol1 vol2 scratch; do farblk unmap $name || exit; done")
        client.sh("systemctl enable --now farblk-map@vol1 farblk-map@vol2 farblk-map@scratch")
        client.sh("udevadm settle && mkfs.ext4 -q -L vol1 /dev/farblk/by-name/vol1 && mkfs.ext4 -q /dev/farblk/by-name/vol2")
        uuid = client.sh("udevadm settle && blkid -s UUID -o value /dev/farblk/by-name/vol2")
        options = "_netdev,nofail,x-systemd.device-timeout=infinity"
        client.sh(f"mkdir /data1 /data2 && printf '%s\\n' '/dev/farblk/by-name/vol1 /data1 ext4 {options} 0 2' "
                  f"'UUID={uuid} /data2 ext4 {options} 0 2' >/etc/fstab && systemctl daemon-reload")
        client.sh("systemctl start remote-fs.target")
        # With nofail the target does not wait for them.
        self.are_mounted()
        client.sh(self.FILL.format("/data1 /data2"))
        client.sh("cp /usr/bin/bash /tmp/ram && dd if=/tmp/ram of=/dev/farblk/by-name/scratch bs=64k oflag=direct conv=fsync,notrunc")
        self.state = self.describe()
        lines = self.state.splitlines()
        links = [line for line in lines if "/" in line and line.count("/") < 3 and not line.startswith(("[", "/"))]
        if len(links) != 9 or lines.count("vol1") != 1 or sum("[none]" in line for line in lines) != 3 or \
                sum('"live"' in line for line in lines) != 3 or sum(" ext4" in line for line in lines) != 2 or \
                sum(line.startswith("uuid.") for line in lines) != 3:
            raise Failed(f"the client is not as it should be:\n{self.state}")
        self.server_id = server.sh("cat /sys/kernel/config/farblk/host_id")

    def describe(self):
        """What must be the same after a reboot: maps, links, WWNs and mounts."""
        return self.client.sh(
            "udevadm settle; farblk -j list | jq -c '.maps[] | [.name, .export, .uuid, .state, .size_bytes, .read_only, "
            ".no_path_timeout_ms, (.paths | map(.addr))]' | sort; "
            "for n in vol1 vol2 scratch; do u=$(farblk -j show $n | jq -r .map.uuid); d=$(farblk -j show $n | jq -r .map.device); "
            "for l in farblk/by-name/$n farblk/by-id/$u disk/by-id/farblk-$u; do "
            "[ $(readlink -f /dev/$l) = $d ] && echo $l; done; cat /sys/block/${d#/dev/}/queue/scheduler; lsblk -dno WWN $d; done; "
            "ls -l /dev/disk/by-label | sed -n 's/.* \\(vol1\\) -> .*/\\1/p'; "
            "findmnt -rno TARGET,FSTYPE /data1; findmnt -rno TARGET,FSTYPE /data2")

    # --- what must be so ---

    def same(self, ram=True):
        """The maps, the mounts and the data are those from before, and no I/O of the block exports has failed. A RAM
        export keeps its data if its server did not reboot."""
        client = self.client
        self.are_mounted()
        client.sh("for d in /data1 /data2; do cd $d && sha256sum --quiet -c sums && touch x && rm x || exit; done")
        if ram:
            client.until("[ \"$(</sys/kernel/config/farblk/maps/scratch/state)\" = live ]")
            client.sh("cmp -n 1000000 /tmp/ram /dev/farblk/by-name/scratch" if not self.tmp_is_gone() else
                      "cmp -n 1000000 /usr/bin/bash /dev/farblk/by-name/scratch")
            state = self.describe()
            if state != self.state:
                raise Failed(f"the client is not as before:\n{state}\n-- before --\n{self.state}")
        self.server.is_("cat /sys/kernel/config/farblk/host_id", self.server_id)
        errors = client.sh("for n in vol1 vol2; do d=$(basename $(readlink -f /dev/farblk/by-name/$n)); "
                           "dmesg | grep -E 'I/O error|EXT4-fs error' | grep -E \"[ (]$d[-,):]\"; done; true")
        if errors:
            raise Failed(f"I/O of the block exports has failed:\n{errors}")

    def tmp_is_gone(self):
        return self.client.try_("test -e /tmp/ram")[0] != 0

    def stale(self):
        """The server has forgotten its RAM: the client is told so, and no read succeeds."""
        client = self.client
        client.until("[ \"$(</sys/kernel/config/farblk/maps/scratch/state)\" = stale ]")
        client.sh("! dd if=/dev/farblk/by-name/scratch of=/tmp/read bs=4k count=1 iflag=direct 2>/dev/null && [ ! -s /tmp/read ]")

    def renew(self):
        """Accepts the new RAM, and fills it."""
        client = self.client
        client.sh("farblk remap scratch --yes && udevadm settle")
        client.sh("dd if=/usr/bin/bash of=/dev/farblk/by-name/scratch bs=64k oflag=direct conv=fsync,notrunc")

    def maps_are_live(self, seconds=BOOT):
        for name in "vol1", "vol2":
            self.client.until(f"[ \"$(</sys/kernel/config/farblk/maps/{name}/state)\" = live ]", seconds)

    def are_mounted(self):
        self.client.until("mountpoint -q /data1 && mountpoint -q /data2", BOOT)

    # --- the scenarios ---

    def coldplug(self):
        """udev looks at all disks again, as it does at boot: links and WWNs stay, and a partition has its own."""
        client, server = self.client, self.server
        client.sh("udevadm trigger -s block && udevadm settle")
        self.same()
        client.sh("udevadm trigger -s block --action=add && udevadm settle")
        self.same()
        # A partition table of DOS with one partition.
        client.sh(r"{ head -c 446 /dev/zero; printf '\0\0\0\0\203\0\0\0\0\1\0\0\0\4\0\0'; head -c 48 /dev/zero; printf '\125\252'; } | "
                  "dd of=/dev/farblk/by-name/scratch bs=4k iflag=fullblock conv=sync,notrunc,fsync oflag=direct")
        look = ("u=$(farblk -j show scratch | jq -r .map.uuid); d=$(farblk -j show scratch | jq -r .map.device); "
                "for l in farblk/by-name/scratch farblk/by-id/$u disk/by-id/farblk-$u; do "
                "[ \"$(readlink -f /dev/$l-part1)\" = ${d}p1 ] && [ \"$(readlink -f /dev/$l)\" = $d ] || { ls -l /dev/farblk/*; exit 1; }; done")
        client.until("blockdev --rereadpt /dev/farblk/by-name/scratch 2>/dev/null; udevadm settle; [ -b /dev/farblk/by-name/scratch-part1 ]", 120)
        client.sh(look)
        client.sh("udevadm trigger -s block && udevadm settle && " + look)
        # While its server is away a partition keeps its names, too, and is not read.
        seen = "&& for n in scratch scratch-part1; do udevadm info -q property -n farblk/by-name/$n | grep -x FARBLK_STATE={} || exit; done"
        ports = "for port in /sys/kernel/config/farblk/ports/*; do echo {} >$port/enable || exit; done"
        server.sh(ports.format(0))
        client.until("[ \"$(</sys/kernel/config/farblk/maps/scratch/state)\" = reconnecting ]")
        client.sh("udevadm trigger -s block && udevadm settle --timeout=60 && " + look + seen.format("reconnecting"))
        server.sh(ports.format(1))
        self.maps_are_live()
        client.sh("udevadm trigger -s block && udevadm settle && " + look + seen.format("live"))
        # The unit is done when all names are there, and nobody uses the disk.
        client.sh("systemctl restart farblk-map@scratch && " + look)
        client.sh("farblk unmap scratch && systemctl restart farblk-map@scratch && " + look)
        client.sh("dd if=/usr/bin/bash of=/dev/farblk/by-name/scratch bs=64k oflag=direct conv=fsync,notrunc")
        client.until("blockdev --rereadpt /dev/farblk/by-name/scratch 2>/dev/null; udevadm settle; [ ! -e /dev/farblk/by-name/scratch-part1 ]", 120)
        self.same()

    def by_hand(self):
        """A unit does not unmap a map that it has not made, also when it had made one of that name before."""
        client = self.client
        by_hand = "farblk map server/scratch --no-path-timeout forever --wait 30s"
        live = "udevadm settle && [ \"$(</sys/kernel/config/farblk/maps/scratch/state)\" = live ]"
        client.sh("systemctl stop farblk-map@scratch && [ ! -e /sys/kernel/config/farblk/maps/scratch ]")
        client.sh(by_hand)
        client.sh(f"systemctl start farblk-map@scratch && systemctl stop farblk-map@scratch && {live}")
        client.sh("farblk unmap scratch && systemctl start farblk-map@scratch && udevadm settle && farblk unmap scratch")
        client.sh(by_hand)
        client.sh(f"systemctl is-active farblk-map@scratch && systemctl stop farblk-map@scratch && {live}")
        client.sh("farblk unmap scratch && systemctl start farblk-map@scratch")
        self.same()

    def names(self):
        """What a command has made, moved or removed has its own names when that returns, and no others."""
        client, server = self.client, self.server
        both = "one", "two"
        for name in both:
            server.sh(f"farblk export create {name} --file /srv/{name} --size 16M --allow client")
        own = "for n in one two; do [ $(basename $(readlink -f /dev/farblk/by-name/$n)) = $(</sys/kernel/config/farblk/maps/$n/device) ] || exit; done"
        for _ in range(5):
            # The disks get the other order by the restore.
            for name in reversed(both):
                client.sh(f"farblk map server/{name} --persist --no-path-timeout 5s")
            client.sh(own)
            for name in both:
                client.sh(f"farblk unmap {name} && [ ! -L /dev/farblk/by-name/{name} ]")
            client.sh(f"farblk config restore >/dev/null && {own}")
            for name in both:
                client.sh(f"farblk unmap {name}")
        client.sh("rm /etc/farblk/client.d/one.toml /etc/farblk/client.d/two.toml")
        for name in both:
            server.sh(f"farblk export rm {name} && rm /srv/{name}")
        self.same()

    def client_reboots(self):
        """A client reboots: it has its exports back at once, although each admits one map only."""
        client = self.client
        client.sh("echo unsynced >/data1/late")
        client.reboot()
        down = client.down()
        client.ready()
        self.maps_are_live()
        # With nofail the boot does not wait for them.
        self.are_mounted()
        client.is_("cat /data1/late", "unsynced")
        longest = 0
        for name in "vol1", "vol2", "scratch":
            # When udev saw the disk, which is when it was live: the unit waits for udev, too.
            names = "NRestarts", "InactiveExitTimestampMonotonic", "USEC_INITIALIZED"
            show = client.sh(f"systemctl show -p {','.join(names[:2])} farblk-map@{name} && "
                             f"udevadm info -q property -n farblk/by-name/{name} | grep {names[2]}")
            values = dict(line.split("=") for line in show.splitlines())
            restarts, began, live = (int(values[name]) for name in names)
            longest = max(longest, (live - began) / 1e6)
            if restarts or longest > BACK:
                raise Failed(f"{name} is back after {restarts} restarts of its unit and {longest:.1f} s, not within {BACK} s")
        self.same()
        return f"down after {down:.0f} s, maps back within {longest:.1f} s of the start of their units"

    def server_reboots(self):
        """A server reboots while a client writes: the I/O waits, and goes on. No flush fails, although not all was
        flushed: the server did so."""
        client, server = self.client, self.server
        client.sh("cat >/tmp/writer <<'END'\nrm -f /tmp/stop /tmp/wrong /tmp/count; n=0\n"
                  "while [ ! -e /tmp/stop ]; do n=$((n + 1)); for d in /data1 /data2; do\n"
                  "head -c 100000 /dev/urandom >/tmp/w; dd if=/tmp/w of=$d/w$((n % 20)) bs=10k conv=fsync 2>/dev/null &&\n"
                  "(cd /tmp && sha256sum w | sed \"s|w\\$|$d/w$((n % 20))|\" >$d/w$((n % 20)).sum) && "
                  "dd if=/tmp/w of=$d/wdirect bs=4k count=4 oflag=direct conv=notrunc 2>/dev/null || echo $n >/tmp/wrong; done; echo $n >/tmp/count; done\nEND\n"
                  "systemd-run --unit=writer --collect bash /tmp/writer")
        client.until("[ $(</tmp/count) -ge 5 ]")
        server.reboot()
        down = server.down()
        client.until("[ \"$(</sys/kernel/config/farblk/maps/vol1/state)\" = reconnecting ]")
        before = int(client.sh("cat /tmp/count"))
        server.ready()
        self.maps_are_live()
        client.until(f"[ $(</tmp/count) -ge {before + 5} ]", BOOT)
        took = time.monotonic() - server.began
        client.sh("touch /tmp/stop")
        client.until("! systemctl is-active --quiet writer")
        client.sh("[ ! -e /tmp/wrong ] && for d in /data1 /data2; do sha256sum --quiet -c $d/*.sum || exit; done && rm /data?/w*")
        self.stale()
        self.same(ram=False)
        self.renew()
        self.same()
        return f"down after {down:.0f} s, I/O went on after {took:.0f} s"

    def both_reboot(self):
        """Both reboot at the same time."""
        self.client.sh("sync")
        self.server.reboot()
        self.client.reboot()
        down = [host.down() for host in (self.server, self.client)]
        self.server.ready(BOOT * 2)
        self.client.ready(BOOT * 2)
        self.maps_are_live()
        self.same(ram=False)
        self.new_ram()
        return f"the server was down after {down[0]:.0f} s, the client after {down[1]:.0f} s"

    def new_ram(self):
        """The client knows nothing of the contents that it had: they may be new, or refused; they are not the old ones."""
        self.client.until("[ \"$(</sys/kernel/config/farblk/maps/scratch/state)\" = live ]")
        self.client.sh("dd if=/usr/bin/bash of=/dev/farblk/by-name/scratch bs=64k oflag=direct conv=fsync,notrunc")
        self.same()

    def server_is_late(self):
        """The client boots while the server is off, and does not wait for it; the server comes a minute later."""
        client, server = self.client, self.server
        client.power_off()
        server.power_off()
        client.power_on()
        began = time.monotonic()
        client.ready()
        booted = time.monotonic() - began
        client.sh("systemctl is-active --quiet systemd-user-sessions")
        time.sleep(LATE)
        client.is_("mountpoint -q /data1 || echo not mounted", "not mounted")
        server.power_on()
        server.ready()
        self.maps_are_live()
        self.same(ram=False)
        self.new_ram()
        return f"the client had booted after {booted:.0f} s without its server"

    def power_off_alone(self):
        """The client is turned off while its server is, with data that was not written: that does not hang."""
        client, server = self.client, self.server
        client.sh("sync")
        server.power_off()
        client.until("[ \"$(</sys/kernel/config/farblk/maps/vol1/state)\" = reconnecting ]")
        client.sh("echo lost >/data1/lost; systemd-run --unit=reader --collect "
                  "-p RequiresMountsFor=/data2 sh -c 'exec dd if=/data2/a of=/dev/null iflag=direct'")
        took = client.power_off()
        server.power_on()
        client.power_on()
        server.ready(BOOT * 2)
        client.ready(BOOT * 2)
        self.maps_are_live()
        self.same(ram=False)
        self.new_ram()
        return f"off after {took:.0f} s"

    def mirror(self):
        """The unit of scale-out.rst for an array over two maps: it is stopped before its disks, and is there after a
        reboot, although udev does not assemble it."""
        client, server = self.client, self.server
        with open(f"{TOP}/Documentation/scale-out.rst", encoding="utf-8") as page:
            text = page.read()
        unit = text[text.index("  [Unit]\n"):text.index("  WantedBy=")] + "  WantedBy=multi-user.target\n"
        fstab = next(line for line in text.splitlines() if line.startswith("  /dev/md/mirror  /data "))
        for name in "one", "two":
            server.sh(f"farblk export create {name} --file /srv/{name} --size 16M --allow client")
            client.sh(f"farblk map server/{name} --no-path-timeout 5s --persist && farblk unmap {name}")
        server.sh("farblk config save")
        client.sh("modprobe raid1; systemctl enable --now farblk-map@one farblk-map@two && udevadm settle")
        client.sh("mdadm --create /dev/md/mirror --metadata=1.2 --level=1 --raid-devices=2 --bitmap=internal "
                  "/dev/farblk/by-name/one /dev/farblk/by-name/two </dev/null && mdadm --wait /dev/md/mirror; "
                  "mkfs.ext4 -q /dev/md/mirror && mdadm --detail --brief /dev/md/mirror | "
                  "sed 's/^ARRAY .*\\(UUID=[^ ]*\\).*/ARRAY <ignore> \\1/' >>/etc/mdadm/mdadm.conf && mdadm --stop /dev/md/mirror")
        code = base64.b64encode("".join(line[2:] + "\n" for line in unit.splitlines()).encode()).decode()
        client.sh(f"cp /etc/fstab /root/fstab; mkdir /data && echo '{fstab}' >>/etc/fstab && base64 -d <<<{code} >/etc/systemd/system/mirror.service && "
                  "systemctl daemon-reload && systemctl enable --now mirror && systemctl start data.mount", BOOT)
        client.sh("mountpoint /data && head -c 2M /dev/urandom >/data/a && cd /data && sha256sum a >sums && sync")
        # systemctl queues one after the other: the first does not wait for what comes later.
        client.sh("systemctl stop data.mount mirror farblk-map@one farblk-map@two && ! farblk list | grep -E '^(one|two) '", BOOT)
        client.sh("systemctl start farblk-map@one farblk-map@two mirror data.mount && cd /data && sha256sum --quiet -c sums", BOOT)
        client.reboot()
        client.ready()
        client.until("mountpoint -q /data", BOOT)
        client.sh("cd /data && sha256sum --quiet -c sums")
        client.sh("mdadm --detail /dev/md/mirror | grep -q 'State : clean *$' && ! dmesg | grep 'not clean'")
        restarts = client.sh("systemctl show -p NRestarts --value mirror")
        client.sh("systemctl stop data.mount && systemctl disable --now mirror && systemctl disable --now farblk-map@one farblk-map@two && "
                  "! farblk list | grep -E '^(one|two) ' && rm /etc/systemd/system/mirror.service && mv /root/fstab /etc/fstab && systemctl daemon-reload && rmdir /data && "
                  "rm /etc/farblk/client.d/one.toml /etc/farblk/client.d/two.toml", BOOT)
        for name in "one", "two":
            server.sh(f"farblk export rm {name} && rm /srv/{name}")
        server.sh("farblk config save --prune")
        self.maps_are_live()
        self.same(ram=False)
        return f"assembled after {restarts} restarts of its unit"

    def swap(self):
        """The swap space of boot.rst, on RAM whose contents are lost: what doctor says of a line of fstab brings it. The
        client boots without its server, too, and has the space when that comes."""
        client, server = self.client, self.server
        with open(f"{TOP}/Documentation/boot.rst", encoding="utf-8") as page:
            unit = [line[2:] for line in page if "systemd-makefs swap" in line or "SWAPON_OPTIONS" in line]
        on = "[ \"$(swapon --show=PRIO --noheadings)\" = 10 ]"
        server.sh("farblk export create swap --ram 16M --allow client && farblk config save")
        client.sh("farblk map server/swap --no-path-timeout forever --persist && farblk unmap swap")
        code = base64.b64encode(("[Service]\n" + "".join(unit)).encode()).decode()
        client.sh("cp /etc/fstab /root/fstab && mkdir /etc/systemd/system/farblk-swap@swap.service.d && "
                  f"base64 -d <<<{code} >/etc/systemd/system/farblk-swap@swap.service.d/override.conf && "
                  "echo '/dev/farblk/by-name/swap none swap _netdev,nofail 0 0' >>/etc/fstab")
        client.sh("eval \"$(farblk -j doctor | jq -r '.checks[] | select(.name == \"fstab\") | .hint')\" && "
                  "farblk doctor | grep 'ok *fstab' && systemctl daemon-reload && systemctl enable --now farblk-map@swap farblk-swap@swap")
        client.sh(on)
        client.reboot()
        down = client.down()
        client.ready()
        client.until(on)
        # It is given back before the map goes.
        client.sh("systemctl restart farblk-map@swap")
        client.until(f"{on} && systemctl is-active farblk-swap@swap")
        client.sh("systemctl stop farblk-map@swap && [ -z \"$(swapon --show)\" ] && [ ! -e /sys/kernel/config/farblk/maps/swap ]")
        client.sh("systemctl start farblk-map@swap")
        client.until(on)
        client.power_off()
        server.power_off()
        client.power_on()
        client.ready()
        client.sh("systemctl is-active --quiet swap.target systemd-user-sessions && [ -z \"$(swapon --show)\" ]")
        server.power_on()
        server.ready()
        client.until(on, BOOT)
        # And while the server is away.
        server.power_off()
        client.until("[ \"$(</sys/kernel/config/farblk/maps/swap/state)\" = reconnecting ]")
        off = client.power_off()
        server.power_on()
        client.power_on()
        server.ready(BOOT * 2)
        client.ready(BOOT * 2)
        client.until(on, BOOT)
        client.sh("systemctl disable --now farblk-map@swap farblk-swap@swap && [ -z \"$(swapon --show)\" ] && mv /root/fstab /etc/fstab && "
                  "rm -r /etc/farblk/client.d/swap.toml /etc/systemd/system/farblk-swap@swap.service.d && systemctl daemon-reload")
        server.sh("farblk export rm swap && farblk config save --prune")
        self.maps_are_live()
        self.same(ram=False)
        self.new_ram()
        return f"down after {down:.0f} s, off after {off:.0f} s without the server"

    def clients_volumes(self):
        """A client makes LVM and md on the disk of an export. Its server leaves both alone when it reboots; without the
        rule for that it uses them, and doctor has the cure."""
        client, server = self.client, self.server
        client.sh("systemctl stop data1.mount && modprobe raid1 && cp /etc/mdadm/mdadm.conf /root/ && echo AUTO -all >>/etc/mdadm/mdadm.conf")
        disk = "vol1=/dev/farblk/by-name/vol1"
        client.sh(f"{disk}; printf 'label: gpt\\nsize=24M, name=clients-lvm\\nsize=24M, name=clients-md\\n' | sfdisk --quiet --wipe always $vol1")
        client.until(f"{disk}; udevadm settle; [ -b $vol1-part1 ] && [ /dev/disk/by-partlabel/clients-md -ef $vol1-part2 ]", 120)
        client.sh(f"{disk}; seq=/dev/disk/by-diskseq/$(cat /sys/class/block/$(basename $(readlink -f $vol1))/diskseq) && "
                  "[ $seq -ef $vol1 ] && [ $seq-part1 -ef $vol1-part1 ]")
        client.sh(f"{disk}; vgcreate vgc $vol1-part1 && lvcreate --yes -L 16M -n data vgc && vgchange --activate n vgc && "
                  "mdadm --create /dev/md/clients --level=1 --raid-devices=2 $vol1-part2 missing --run </dev/null && "
                  "udevadm settle && mdadm --stop /dev/md/clients && sync")
        grabbed = "dmsetup ls | grep vgc && grep ^md /proc/mdstat"
        server.reboot()
        server.down()
        server.ready()
        self.maps_are_live()
        # Also when udev looks again.
        server.sh("farblk export disable vol1 --force && udevadm trigger -s block --action=add && udevadm settle && sleep 2")
        server.sh("! dmsetup ls | grep vgc && ! grep ^md /proc/mdstat && [ ! -e /dev/disk/by-partlabel/clients-md ] && farblk config restore --server")
        self.maps_are_live()
        rule = "/usr/lib/udev/rules.d/64-farblk-exports.rules"
        server.sh(f"mv {rule} /root/")
        server.reboot()
        server.down()
        server.ready()
        server.until(grabbed)
        server.until("farblk doctor | grep 'vol1 .* does not run; used by: '")
        server.sh("farblk -j doctor | jq -r '.checks[] | select(.name == \"export\" and .level == \"fail\") | .hints[]' >/root/cure && "
                  f"mv /root/{rule.rsplit('/', 1)[1]} {rule} && cat /root/cure && sh -x /root/cure && ! ( {grabbed} )")
        self.maps_are_live()
        client.sh(f"{disk}; vgchange --activate y vgc && dd if=/dev/vgc/data of=/dev/null bs=64k count=8 iflag=direct && vgchange --activate n vgc && "
                  "wipefs --all --quiet $vol1-part1 $vol1-part2 $vol1 && udevadm settle; blockdev --rereadpt $vol1; udevadm settle; "
                  "mkfs.ext4 -q -F -L vol1 $vol1 && mv /root/mdadm.conf /etc/mdadm/ && udevadm settle && systemctl start data1.mount && "
                  + self.FILL.format("/data1"), BOOT)
        self.stale()
        self.same(ram=False)
        self.renew()
        self.same()

    # --- all of them ---

    def again(self):
        """Both machines anew, after a failure."""
        for host in self.server, self.client:
            def anew(guest=host.guest):
                if guest.alive():
                    guest.expect_off = True
                    guest.kill()
                    guest.proc.wait()
                    guest.close()
                fresh(guest)
                guest.boot()
            self.run.do(anew)
        self.prepare()

    def tell(self, name):
        """Leaves what both machines say about a failure, as far as they answer."""
        for host in self.server, self.client:
            if not host.guest.alive():
                continue
            try:
                _, text = host.try_("journalctl -b --no-pager -o short-monotonic | tail -n 300; farblk list; farblk export list; "
                                    "systemctl list-jobs; systemctl --failed", 20)
            except Failed:
                continue
            with open(f"{self.run.args.out}/{name}.{host.role}.journal", "w", encoding="utf-8") as file:
                file.write(text)


class Results:
    """How often each scenario passed and failed, and the rounds in which all have passed."""

    def __init__(self, names):
        self.scenarios = {name: [0, 0] for name in names}
        self.rounds = 0


def play(names, rounds, results):
    """The function of the thread of the scenarios."""
    def complaints(run):
        return [line for guest in run.guests for line in guest.splats]

    def thread(run):
        scenarios = Scenarios(run)
        start = time.monotonic()
        try:
            scenarios.prepare()
        except Failed as failure:
            scenarios.tell("prepare")
            print(f"FAIL prepare: {failure}", flush=True)
            return
        print(f"prepared in {time.monotonic() - start:.0f} s", flush=True)
        fine = True
        for number in range(1, rounds + 1):
            passed = 0
            for name in names:
                start = time.monotonic()
                before = len(complaints(run))
                try:
                    if not fine:
                        scenarios.again()
                    said = getattr(scenarios, name)()
                    if new := complaints(run)[before:]:
                        raise Failed(f"a kernel complained: {new[0]}")
                    fine = True
                except Failed as failure:
                    fine = False
                    results.scenarios[name][1] += 1
                    print(f"round {number}: {name}: FAIL ({time.monotonic() - start:.0f} s): {failure}", flush=True)
                    scenarios.tell(f"{name}-{number}")
                    if run.failure:
                        return
                    continue
                passed += 1
                results.scenarios[name][0] += 1
                print(f"round {number}: {name}: ok ({time.monotonic() - start:.0f} s){': ' if said else ''}{said or ''}", flush=True)
            results.rounds += passed == len(names)
    return thread


def main():
    p = argparse.ArgumentParser(prog="tools/vm/boot", description=__doc__.splitlines()[0])
    p.add_argument("--rounds", type=int, default=1, help="how often each scenario is run")
    p.add_argument("--only", help="SCENARIO,...: " + ", ".join(Scenarios.NAMES))
    p.add_argument("--out", help="folder for consoles and journals (kept)")
    p.add_argument("--verbose", action="store_true", help="show the consoles")
    p.add_argument("--guest", required=True, help=argparse.SUPPRESS)
    p.add_argument("--cache", required=True, help=argparse.SUPPRESS)
    own = p.parse_args()
    names = own.only.split(",") if own.only else Scenarios.NAMES
    if not set(names) <= set(Scenarios.NAMES):
        p.error(f"there is no such scenario; there are {', '.join(Scenarios.NAMES)}")
    agent = f"{HERE}/guest/agent"
    words = ["--roles", f"server={agent},client={agent}", "--guest", own.guest, "--kind", "stock", "--cache", own.cache,
             "--mem", "512", "--disk", "64", "--timeout", str(600 + own.rounds * len(names) * 600), "--append", *APPEND]
    words += ["--out", own.out] if own.out else []
    words += ["--verbose"] if own.verbose else []
    args = harness.arguments(words)
    # The guests unpack it in each boot; 23 of its 24 MB are for debuggers.
    module = f"{args.out}/farblk.ko"
    subprocess.run(["strip", "--strip-debug", "-o", module, f"{TOP}/rust/farblk.ko"], check=True)
    args.files = [module, *(f"{TOP}/tools/{file}" for file in ("farblk/farblk", "stamp/stamp", "units", "udev"))]
    results = Results(names)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Run(args, play(names, own.rounds, results))
    run.pack()
    try:
        run.loop()
    except KeyboardInterrupt:
        run.failure = "interrupted"
    finally:
        run.stop()
        for guest in run.guests:
            for name in f"{guest.role}.root", f"{guest.role}.disk":
                if os.path.lexists(f"{args.out}/{name}"):
                    os.unlink(f"{args.out}/{name}")
    fine = run.failure is None
    if run.failure:
        print(f"FAIL {run.failure}")
    for guest in run.guests:
        if guest.splats:
            fine = False
            print(f"FAIL {guest.role}: the kernel complained:", *guest.splats[:60], sep="\n  ")
    fine = fine and results.rounds == own.rounds
    for name, (passed, failed) in results.scenarios.items():
        print(f"{name}: {passed} passed, {failed} failed")
    if fine and args.temporary:
        shutil.rmtree(args.out)
    elif not fine:
        print(f"consoles and journals: {args.out}")
    print(f"{results.rounds} of {own.rounds} rounds passed")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
