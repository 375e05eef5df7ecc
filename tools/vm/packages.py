#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Installs the Debian packages in guests with systemd, uses them and purges them; started by tools/vm/packages.

The machines and their agent are those of boot.py.
"""
import argparse
import glob
import os
import shutil
import signal
import sys
import time

import boot
import harness

# The agent, the journal and the harness write to these.
NOT = " -o ".join(f"-path {path}" for path in ("/proc", "/sys", "/run", "/tmp", "/dev", "/root", "/farblk", "/mnt", "/srv", "/var/log",
                                                "/var/cache", "/var/lib/systemd", "/var/lib/dpkg", "'/usr/lib/modules/*/modules.*'"))
FILES = f"find / -xdev \\( {NOT} \\) -prune -o"


def clean(host):
    """Nothing of farblk is left on a host, in its files, in its kernel or in systemd."""
    left = host.sh(f"{FILES} -iname '*farblk*' -print")
    left += host.sh("dpkg -l 'farblk*' 2>/dev/null | grep ^[a-z] | grep -v ^un || true")
    left += host.sh("grep '^farblk ' /proc/modules || true; systemctl list-unit-files --no-legend 'farblk*' || true")
    left += host.sh("grep -l farblk /usr/lib/modules/*/modules.dep || true")
    if left.strip():
        raise boot.Failed(f"{host.role}: the purge leaves:\n{left}")


def packages(run):
    """A server and a client, from nothing to a mounted disk and back."""
    server, client = (boot.Host(run, role) for role in ("server", "client"))
    for host in server, client:
        host.ready()
        host.sh(f"{FILES} -print | sort >/root/before && [ -s /root/before ] && ! command -v farblk")
        host.sh("dpkg -i /farblk/deb/farblk-tools_*.deb /farblk/deb/farblk-modules-$(uname -r)_*.deb", 300)
        host.sh("systemctl enable --now farblk-rxe@eth0", 120)
        host.sh("for f in /usr/share/bash-completion/completions/farblk /usr/lib/systemd/system/farblk-server.service "
                "/usr/lib/udev/rules.d/60-farblk.rules; do [ -s $f ] || exit; done; farblk version")
    server.sh("farblk port add --addr 10.9.0.1")
    server.sh("farblk export create vol1 --file /srv/vol1 --size 48M --allow client")
    # The three commands of a new user.
    began = time.monotonic()
    client.sh("farblk map 10.9.0.1/vol1 --wait 30s --persist", 120)
    client.sh("udevadm settle; mkfs.ext4 -q /dev/farblk/by-name/vol1", 120)
    client.sh("mount /dev/farblk/by-name/vol1 /mnt && mountpoint /mnt")
    print(f"packages: mapped, formatted and mounted in {time.monotonic() - began:.0f} s", flush=True)
    client.sh("cp /usr/bin/bash /mnt/a && sync && umount /mnt && mount /dev/farblk/by-name/vol1 /mnt && cmp /usr/bin/bash /mnt/a")
    # What a purge has to take away, too.
    server.sh("farblk config save && systemctl enable farblk-server")
    client.sh("systemctl enable farblk-map@vol1 && [ -d /etc/farblk ]")
    client.sh("umount /mnt && farblk unmap vol1", 120)
    server.sh("farblk export rm vol1 --force && farblk port rm 1", 120)
    for host in server, client:
        host.sh("systemctl disable --now farblk-rxe@eth0", 120)
        host.sh("dpkg --purge farblk-tools farblk-modules-$(uname -r)", 300)
        clean(host)
        # There are no other files than before, either.
        left = host.sh(f"{FILES} -print | sort | comm -13 /root/before -")
        if left:
            raise boot.Failed(f"{host.role}: the purge leaves:\n{left}")


def dkms(run):
    """A host whose module DKMS has built; see dkms-guest.sh."""
    host = boot.Host(run, "server")
    host.ready()
    host.sh("dkms status farblk | grep -q installed")
    host.sh("modinfo -n farblk | grep /updates/dkms/")
    host.sh("grep -x 'result: ready' /var/lib/farblk/dkms-$(uname -r).log")
    host.sh("dpkg -i /farblk/deb/farblk-tools_*.deb && systemctl enable --now farblk-rxe@eth0 && modprobe farblk", 300)
    host.sh("farblk port add --addr 10.9.0.1 && farblk export create r --ram 16M --allow-any-host && farblk map 10.9.0.1/r", 120)
    host.sh("udevadm settle; mkfs.ext4 -q /dev/farblk/by-name/r && mount /dev/farblk/by-name/r /mnt && umount /mnt", 120)
    host.sh("farblk unmap r && farblk export rm r --force && farblk port rm 1 && systemctl disable --now farblk-rxe@eth0", 120)
    host.sh("dpkg --purge farblk-tools farblk-dkms", 600)
    clean(host)


def main():
    p = argparse.ArgumentParser(prog="tools/vm/packages", description=__doc__.splitlines()[0])
    p.add_argument("--scenario", required=True, choices=["packages", "dkms"])
    p.add_argument("--guest", required=True)
    p.add_argument("--cache", required=True)
    own = p.parse_args()
    agent = f"{boot.HERE}/guest/agent"
    roles = f"server={agent},client={agent}" if own.scenario == "packages" else f"server={agent}"
    files = ["build/deb"] if glob.glob(f"{boot.TOP}/build/deb/*.deb") else []
    args = harness.arguments(["--roles", roles, "--guest", own.guest, "--kind", "stock", "--cache", own.cache, "--mem", "768",
                              "--disk", "64", "--timeout", "3000", "--append", *boot.APPEND,
                              "--files", *[f"{boot.TOP}/{file}" for file in files]])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = boot.Run(args, {"packages": packages, "dkms": dkms}[own.scenario])
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
