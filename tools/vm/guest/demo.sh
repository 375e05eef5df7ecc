#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The two roles of tools/vm/demo.
. vm/guest/lib.sh
export PATH=/farblk:$PATH NO_COLOR=1

say() { printf '\n== %s\n' "$*"; }
# run COMMAND...: shows it as it would be typed, and runs it; the demo ends where one fails.
run() { printf '%s# %s\n' "$ROLE" "$*"; "$@" || { echo "FAILED with exit code $?"; exit 1; }; }
resources() { rdma resource show; }

server() {
	run insmod farblk.ko
	say "This host offers 128 MiB of its memory to the host named client"
	run farblk port add --addr "$ADDR"
	run farblk export create scratch --ram 128M --allow client
	barrier offered
	barrier unmapped
	say "The server's view; its CPU took no part in the I/O"
	run farblk export list
	run cat /sys/kernel/debug/farblk/server/counters
	run farblk export rm scratch
	run farblk port rm 1
	run rmmod farblk
}

client() {
	run insmod farblk.ko
	barrier offered
	say "This host uses the server's memory as a disk"
	run farblk discover "$(address server)"
	run farblk map "$(address server)/scratch"
	run mkfs.ext4 -q /dev/farblk0
	mkdir -p /mnt
	run mount /dev/farblk0 /mnt
	run farblk list
	run cp -r /usr/lib/x86_64-linux-gnu/gconv /usr/sbin /mnt
	run sync
	run df -h /mnt
	(cd /mnt && find . -type f -exec sha256sum {} + >/tmp/sums)
	say "The files are still there after the disk was unmapped and mapped again"
	run umount /mnt
	run farblk unmap scratch
	run farblk map "$(address server)/scratch"
	run mount /dev/farblk0 /mnt
	(cd /mnt && run sha256sum --quiet -c /tmp/sums) || exit 1
	echo "$(wc -l </tmp/sums) files, all checksums right"
	run umount /mnt
	run fsck.ext4 -fn /dev/farblk0
	run farblk unmap /dev/farblk0
	barrier unmapped
	run rmmod farblk
}

modprobe -a $(modinfo -F depends farblk.ko | tr , ' ')
before=$(resources)
"$ROLE"
barrier removed
say "Nothing is left of it"
run resources
[ "$(resources)" = "$before" ] || { echo "FAILED: before it was $before"; exit 1; }
