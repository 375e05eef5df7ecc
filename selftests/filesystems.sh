#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# File systems trust the disk.
. "$(dirname "$0")/lib.sh"

# Of the programs and of the other files that are copied.
NAMES='[a-m]*' FILES=200
! is_short || NAMES='[a-c]*' FILES=50

# tree: the checksums of the files there.
tree() { (cd /run/mnt && find . -type f -exec sha256sum {} +) | sort; }

# lives_on TYPE CHECK...: a file system, a tree of files, and the same after the disk was unmapped
# and mapped again. The export e is there.
lives_on() {
	local type=$1 before
	shift
	needs "mkfs.$type"
	needs_own_module "$type"
	must map m e
	must "mkfs.$type" -q "$DEV"
	mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	# Files small and large.
	find /usr/bin -maxdepth 1 -type f -size +1k -size -1000k -name "$NAMES" -print0 | xargs -0 cp -p -t /run/mnt || die "the files were not copied"
	find /usr/share/zoneinfo /usr/lib/python3 -type f 2>/dev/null | head -n $FILES | xargs -r cp -p --parents -t /run/mnt || die "the files were not copied"
	must dd if=/dev/urandom of=/run/mnt/synced bs=64k count=32 oflag=dsync status=none
	tree >/run/sums
	note "$type: $(wc -l </run/sums) files, $(du -sm /run/mnt | cut -f1) MiB"
	is_local || is "unmapping a mounted disk" "$(errno_of store "$C/maps/m/enable" 0)" EBUSY
	must sync -f /run/mnt
	must umount /run/mnt
	must unmap m
	must map m e
	must mount "$DEV" /run/mnt
	tree | cmp - /run/sums || wrong "the files differ"
	# Room that is given back, and filled again.
	must rm -r /run/mnt/usr
	[ "$(queue_file "$DEV" discard_max_bytes)" = 0 ] || must fstrim /run/mnt
	find /usr/share/zoneinfo /usr/lib/python3 -type f 2>/dev/null | head -n $FILES | xargs -r cp -p --parents -t /run/mnt || die "the files were not copied"
	must umount /run/mnt
	must mount "$DEV" /run/mnt
	tree | cmp - /run/sums || wrong "the files differ after some were written again"
	must umount /run/mnt
	command "$@" "$DEV" >/run/fsck 2>&1 || { wrong "$* says: $(tail -n 5 /run/fsck)"; exit 1; }
	must unmap m
}

# block: the export e, of a device that discards. ram: the same of memory.
block() {
	needs_module null_blk
	# The cache does not get full: null_blk makes space for a write without an end, on a host
	# with one CPU, if a task that writes a page back waits for memory (null_make_cache_space).
	back "null_disk fbn 320 blocksize=4096 discard=1 cache_size=96"
	must serve_block e "$BACK"
}
ram() { not_local; must serve e 320M; }
ext4() { block; lives_on ext4 fsck.ext4 -fn; }
xfs() { block; lives_on xfs xfs_repair -n; }
btrfs() { block; lives_on btrfs btrfs check --readonly --check-data-csum; }
ram_ext4() { ram; lives_on ext4 fsck.ext4 -fn; }
ram_xfs() { ram; lives_on xfs xfs_repair -n; }

scenario ext4 "ext4: files survive an unmap, fsck finds nothing"
is_short || scenario xfs "xfs: files survive an unmap, xfs_repair finds nothing"
scenario btrfs "btrfs: files survive an unmap, its checksums and check find nothing"
is_short || scenario ram_ext4 "ext4 on an export of RAM"
scenario ram_xfs "xfs on an export of RAM"
run_scenarios
