#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Installs the Debian packages in guests with systemd, uses them and purges them; started by tools/vm/packages.

The machines and their agent are those of boot.py. What a new user types is printed with its output.
"""
import argparse
import json
import os
import shutil
import signal
import sys
import time

import boot
import harness

# The agent, the journal and the harness write to these.
NOT = " -o ".join(f"-path {path}" for path in ("/proc", "/sys", "/run", "/tmp", "/dev", "/root", "/farblk", "/mnt", "/srv", "/var/log",
                                                "/var/cache", "/var/lib/systemd", "/var/lib/apt", "/var/lib/dpkg", "'/usr/lib/modules/*/modules.*'"))
FILES = f"find / -xdev \\( {NOT} \\) -prune -o"


def clean(host):
    """Nothing of farblk is left on a host, in its files, in its kernel or in systemd."""
    left = host.sh(f"{FILES} -iname '*farblk*' -print")
    left += host.sh("dpkg -l 'farblk*' 2>/dev/null | grep ^[a-z] | grep -v ^un || true")
    left += host.sh("grep '^farblk ' /proc/modules || true; systemctl list-unit-files --no-legend 'farblk*' || true")
    left += host.sh("grep -l farblk /usr/lib/modules/*/modules.dep || true")
    if left.strip():
        raise boot.Failed(f"{host.role}: the purge leaves:\n{left}")


def shown(host, line, seconds=600):
    """Runs a line of shell that must succeed, and prints it as at a prompt, with its output, which it returns."""
    print(f"{host.role}# {line}", flush=True)
    # Of a line that dpkg has written again and again, as it stands at last.
    text = "\n".join(part.rstrip("\r").rpartition("\r")[2] for part in host.sh(line, seconds).split("\n"))
    if text:
        print(text, flush=True)
    return text


def install(host, packages):
    shown(host, "apt-get install -y " + " ".join(f"/farblk/{package}" for package in packages))


def packages(run):
    """A server and a client, from nothing to a mounted disk, over a reboot of both and back."""
    server, client = (boot.Host(run, role) for role in ("server", "client"))
    for host in server, client:
        host.ready()
        host.sh(f"{FILES} -print | sort >/root/before && [ -s /root/before ] && ! command -v farblk")
        install(host, ["deb/farblk-tools_*.deb", "deb/farblk-modules-$(uname -r)_*.deb"])
        shown(host, "systemctl enable --now farblk-rxe@eth0")
        host.sh("for f in /usr/share/bash-completion/completions/farblk /usr/lib/systemd/system/farblk-server.service "
                "/usr/lib/udev/rules.d/60-farblk.rules; do [ -s $f ] || exit; done; farblk version")
    shown(server, "farblk port add --addr 10.9.0.1")
    shown(server, "farblk export create vol1 --file /srv/vol1 --size 48M --allow client")
    shown(server, "farblk config save")
    shown(server, "systemctl enable --now farblk-server")
    # The three commands of a new user.
    began = time.monotonic()
    shown(client, "farblk map 10.9.0.1/vol1 --no-path-timeout forever --wait 30s --persist")
    client.sh("udevadm settle")
    shown(client, "mkfs.ext4 -q /dev/farblk/by-name/vol1")
    shown(client, "mount /dev/farblk/by-name/vol1 /mnt")
    print(f"packages: mapped, formatted and mounted in {time.monotonic() - began:.0f} s", flush=True)
    # What brings it back, as boot.rst and the hint of map tell: the map becomes the unit's.
    shown(client, "umount /mnt && farblk unmap vol1 && systemctl enable --now farblk-map@vol1")
    client.until("[ -e /dev/farblk/by-name/vol1 ]", 60)
    shown(client, "echo '/dev/farblk/by-name/vol1 /mnt ext4 _netdev,nofail,x-systemd.device-timeout=infinity 0 2' >>/etc/fstab")
    shown(client, "systemctl daemon-reload && mount /mnt")
    before = shown(client, "cp /usr/bin/bash /mnt/data && sync && sha256sum /mnt/data")
    for host in client, server:
        print(f"{host.role}# systemctl reboot", flush=True)
        host.reboot()
        host.down()
    for host in client, server:
        host.ready(boot.BOOT * 2)
    client.until("mountpoint -q /mnt", boot.BOOT)
    if (after := shown(client, "sha256sum /mnt/data")) != before:
        raise boot.Failed(f"the data are {after} after the reboot, not {before}")
    shown(client, "cmp /usr/bin/bash /mnt/data && findmnt /mnt")
    shown(client, "farblk list")
    shown(server, "farblk export list")
    # The purge stops the units, and so unmaps the disk.
    shown(client, "umount /mnt && sed -i /farblk/d /etc/fstab")
    for host in client, server:
        if host is server:
            shown(server, "farblk export rm vol1 && farblk port rm 1")
        shown(host, "apt-get purge -y farblk-tools farblk-modules-$(uname -r)")
        clean(host)
        # There are no other files than before, either.
        left = host.sh(f"{FILES} -print | sort | comm -13 /root/before -")
        if left:
            raise boot.Failed(f"{host.role}: the purge leaves:\n{left}")


def cure(host, words):
    """Runs what doctor prints for the module, which has to say these words, where the key is."""
    checks = json.loads(host.sh("farblk -j doctor || true"))["checks"]
    found = next((check for check in checks if check["name"] == "module"), {"text": "nothing", "hints": []})
    if words not in found["text"]:
        raise boot.Failed(f"doctor does not say '{words}' of the module: {found}")
    # The kernel knows the key already, as if mokutil had been run.
    lines = [line for line in found["hints"] if not line.startswith(("#", "mokutil "))]
    if not lines:
        raise boot.Failed(f"doctor has no cure: {found}")
    for line in lines:
        shown(host, f"cd /root/signing && {line}")


def signed(run):
    """A kernel that loads signed modules only and knows the key in /farblk/signing: see trust.py."""
    host = boot.Host(run, "server")
    host.ready()
    install(host, ["deb/farblk-tools_*.deb", "deb/farblk-modules-$(uname -r)_*.deb"])
    # The kernel's own modules have the signature of another key. Those that are needed are loaded
    # before it insists.
    host.sh("systemctl enable --now farblk-rxe@eth0 && modprobe farblk && rmmod farblk")
    # Of linux-kbuild, which has more than a guest needs.
    host.sh("cp -r /farblk/signing /root/ && d=/lib/modules/$(uname -r)/build/scripts && mkdir -p $d && mv /root/signing/sign-file $d/")
    host.sh("[ -z \"$(modinfo -F signer farblk)\" ]")
    shown(host, "echo Y >/sys/module/module/parameters/sig_enforce")
    host.sh("! modprobe farblk")
    cure(host, "signed modules only")
    cure(host, "not loaded")
    host.is_("farblk -j doctor | jq -r '.checks[] | select(.name == \"module\") | .level'", "ok")
    # The package whose module is signed.
    host.sh("rmmod farblk && apt-get purge -y farblk-modules-$(uname -r) && [ ! -e /lib/modules/$(uname -r)/updates/farblk.ko ]", 600)
    install(host, ["signing/farblk-modules-*.deb"])
    host.is_("modinfo -F signer farblk", "farblk test")
    host.sh("grep '^farblk ' /proc/modules && farblk version")


def dkms(run):
    """A host whose module DKMS has built; see dkms-guest.sh."""
    host = boot.Host(run, "server")
    host.ready()
    shown(host, "dkms status farblk")
    host.sh("dkms status farblk | grep -q installed")
    host.sh("modinfo -n farblk | grep /updates/dkms/")
    host.sh("grep -x 'result: ready' /var/lib/farblk/dkms-$(uname -r).log")
    # Where all that can be missing is missing. The file with the answer goes with the purge.
    host.sh("mkdir /root/h && sed 's/^CONFIG_RUST=y/# CONFIG_RUST is not set/' /lib/modules/$(uname -r)/build/.config >/root/h/.config && "
            "mv /usr/bin/rustc /usr/bin/bindgen /root/h/")
    text = shown(host, "/usr/src/farblk-*/dkms/probe 6.12.1-amd64 /root/h || true")
    causes = [line for line in text.splitlines() if line.startswith("missing: ")]
    if len(causes) != 5 or text.count("\n  fix: ") != 5:
        raise boot.Failed(f"the probe names {len(causes)} of 5 causes:\n{text}")
    host.sh("mv /root/h/rustc /root/h/bindgen /usr/bin/")
    install(host, ["deb/farblk-tools_*.deb"])
    host.sh("systemctl enable --now farblk-rxe@eth0 && modprobe farblk", 300)
    host.sh("farblk port add --addr 10.9.0.1 && farblk export create r --ram 16M --allow-any-host && farblk map 10.9.0.1/r", 120)
    host.sh("udevadm settle; mkfs.ext4 -q /dev/farblk/by-name/r && mount /dev/farblk/by-name/r /mnt && umount /mnt", 120)
    host.sh("farblk unmap r && farblk export rm r --force && farblk port rm 1 && systemctl disable --now farblk-rxe@eth0", 120)
    shown(host, "apt-get purge -y farblk-tools farblk-dkms")
    clean(host)


def main():
    p = argparse.ArgumentParser(prog="tools/vm/packages", description=__doc__.splitlines()[0])
    p.add_argument("--scenario", required=True, choices=["packages", "signed", "dkms"])
    p.add_argument("--guest", required=True)
    p.add_argument("--cache", required=True)
    p.add_argument("--files", nargs="*", default=[], help="for the guests' /farblk")
    own = p.parse_args()
    agent = f"{boot.HERE}/guest/agent"
    roles = f"server={agent},client={agent}" if own.scenario == "packages" else f"server={agent}"
    args = harness.arguments(["--roles", roles, "--guest", own.guest, "--kind", "stock", "--cache", own.cache, "--mem", "768",
                              "--disk", "64", "--timeout", "6000", "--append", *boot.APPEND,
                              "--files", *own.files])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = boot.Run(args, {"packages": packages, "signed": signed, "dkms": dkms}[own.scenario])
    run.pack()
    try:
        run.loop()
    except KeyboardInterrupt:
        run.failure = "interrupted"
    finally:
        run.stop()
        for guest in run.guests:
            for name in f"{guest.role}.root", f"{guest.role}.disk":
                if os.path.exists(f"{args.out}/{name}"):
                    os.unlink(f"{args.out}/{name}")
    if run.failure:
        print(f"FAIL {own.scenario}: {run.failure}")
        print(f"consoles: {args.out}")
        sys.exit(1)
    for guest in run.guests:
        if guest.splats:
            print(f"FAIL {guest.role}: the kernel complained:", *guest.splats[:60], sep="\n  ")
            sys.exit(1)
    if args.temporary:
        shutil.rmtree(args.out)
    print(f"{own.scenario}: passed")


if __name__ == "__main__":
    main()
