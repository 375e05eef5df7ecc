#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# File systems trust the disk.
. "$(dirname "$0")/lib.sh"

# lives_on TYPE CHECK...: a file system, a tree of files, and the same after the disk was unmapped and mapped again.
lives_on() {
	local type=$1
	shift
	modprobe "$type"
	must serve e 320M
	must map m e
	must "mkfs.$type" -q "$DEV"
	mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	mkdir /run/mnt/tree
	# Some 200 files, small and large.
	find /usr/bin -maxdepth 1 -type f -size +1k -name '[a-m]*' -print0 | must xargs -0 cp -p -t /run/mnt/tree
	find /usr/share/zoneinfo /usr/lib/python3 -type f 2>/dev/null | head -n 200 | xargs -r cp -p --parents -t /run/mnt/tree
	(cd /run/mnt/tree && find . -type f -exec sha256sum {} +) | sort >/run/sums
	note "$type: $(wc -l </run/sums) files, $(du -sm /run/mnt/tree | cut -f1) MiB"
	is "unmapping a mounted disk" "$(errno_of store "$C/maps/m/enable" 0)" EBUSY
	must sync
	must umount /run/mnt
	must unmap m
	must map m e
	must mount "$DEV" /run/mnt
	(cd /run/mnt/tree && find . -type f -exec sha256sum {} +) | sort | cmp - /run/sums || bad "the files differ"
	must umount /run/mnt
	"$@" "$DEV" >/run/fsck 2>&1 || die "$* says: $(tail -n 5 /run/fsck)"
	must unmap m
}
ext4() { lives_on ext4 fsck.ext4 -fn; }
xfs() { lives_on xfs xfs_repair -n; }

scenario ext4 "ext4: files survive an unmap, fsck finds nothing"
scenario xfs "xfs: files survive an unmap, xfs_repair finds nothing"
run_scenarios
