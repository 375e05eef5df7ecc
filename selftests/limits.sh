#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The disk is what the exported device is: its limits, what it can do, who may have it.
. "$(dirname "$0")/lib.sh"

# limits DEVICE: what it says of itself.
limits() {
	local f
	echo "size $(blockdev --getsize64 "$1")"
	echo "read_only $(blockdev --getro "$1")"
	for f in logical_block_size physical_block_size minimum_io_size optimal_io_size rotational write_cache fua; do
		echo "$f $(queue_file "$1" $f)"
	done
	for f in discard_max_bytes write_zeroes_max_bytes; do
		echo "$f $([ "$(queue_file "$1" $f)" = 0 ] || echo more)"
	done
	[ "$(queue_file "$1" discard_max_bytes)" = 0 ] || echo "discard_granularity $(queue_file "$1" discard_granularity)"
}

# same WHAT: the limits of BACK and of DEV.
same() {
	local theirs ours max
	theirs=$(remote "$(declare -f limits); limits $BACK")
	ours=$(limits "$DEV")
	[ "$theirs" = "$ours" ] || bad "$1:"$'\n'"$(diff <(echo "$theirs") <(echo "$ours"))"
	is_local && return
	is "$1: the map's size" "$(show "$C/maps/m/size")" "$(blockdev --getsize64 "$DEV")"
	max=$(queue_file "$DEV" max_hw_sectors_kb)
	is "$1: max_hw_sectors_kb" "$max" 1024
}

# whole WHAT: what is written to the disk is on the device: its first MiB, and its last 8 blocks.
whole() {
	local bytes bs last
	bytes=$(blockdev --getsize64 "$DEV") bs=$(blockdev --getss "$DEV")
	last=$((bytes / bs - 8))
	random /run/data 1
	must direct_write /run/data "$DEV"
	must direct_write /run/data "$DEV" bs="$bs" count=8 seek=$last
	is "$1: a write behind the end" "$(errno_of direct_write /run/data "$DEV" bs="$bs" count=1 seek=$((last + 8)))" ENOSPC
	same_data "$1: the first MiB and the last blocks" \
		"$(remote "{ dd if=$BACK iflag=direct bs=1M count=1 status=none; dd if=$BACK iflag=direct bs=$bs skip=$last status=none; } | sha256sum")" \
		"$({ cat /run/data; head -c $((8 * bs)) /run/data; } | sha256sum)"
}

# like WHAT LINE [ro]: a disk of what LINE makes on the server.
like() {
	back "$2"
	must serve_block e "$BACK" ${3:+read_only=1}
	must map m e ${3:+access=ro}
	same "$1"
	[ -n "${3:-}" ] || whole "$1"
	must unmap m
	clean_all
}

null_blk() {
	needs_module null_blk
	like "blocks of 512" "null_disk fbn 8 blocksize=512"
	like "blocks of 1024" "null_disk fbn 8 blocksize=1024"
	like "blocks of 2048" "null_disk fbn 8 blocksize=2048"
	like "blocks of 4096" "null_disk fbn 8 blocksize=4096"
	like "a write cache" "null_disk fbn 8 cache_size=4"
	like "a write cache and FUA" "null_disk fbn 8 cache_size=4 fua=1"
	like "discard" "null_disk fbn 8 discard=1 blocksize=4096"
	like "small requests" "null_disk fbn 8 max_sectors=64"
	like "one that submits with sleep" "null_disk fbn 8 blocking=1"
	like "bios" "null_disk fbn 8 queue_mode=0"
}
loop() {
	needs_module loop
	like "blocks of 512" "loop_disk \$(loop_file f 8)"
	like "direct I/O" "loop_disk \$(loop_file f 8) --direct-io=on --sector-size 4096"
	like "read-only" "loop_disk \$(loop_file f 8) --read-only" ro
}
brd() {
	needs_module brd
	like "brd" "brd_disk 8"
}
scsi_debug() {
	needs_module scsi_debug
	like "an optimal size, physical blocks of 4096" "scsi_disk 8 physblk_exp=3 opt_blks=128"
	like "blocks of 4096, thin" "scsi_disk 8 sector_size=4096 lbpu=1 lbpws=1"
	like "write protected" "scsi_disk 8 wp=1" ro
}
# One that does not begin at a physical block. Clients cannot be told, so they are promised none.
misaligned() {
	local f
	not_local
	needs_module brd
	needs_module dm_mod
	# What brd writes as a whole begins 7 sectors before this.
	back "dm_disk odd \"0 4096 linear \$(brd_disk 4) 7\""
	is "alignment_offset of the device" "$(remote "cat /sys/dev/block/\$(lsblk -dno MAJ:MIN $BACK | xargs)/alignment_offset")" 512
	is "physical_block_size of the device" "$(remote "blockdev --getpbsz $BACK")" 4096
	must serve_block e "$BACK"
	must map m e
	for f in physical_block_size minimum_io_size; do is "$f" "$(queue_file "$DEV" $f)" 512; done
	whole "a misaligned disk"
	must unmap m
}
mapper() {
	needs_module dm_mod
	like "odd size" "dm_disk odd \"0 16391 linear \$(null_disk fbn 9) 8\""
}

read_only() {
	local got
	not_local
	back "null_disk fbn 8"
	must serve_block e "$BACK" read_only=1
	must map_make m e
	refused EROFS "$C/maps/m/enable" 1
	must map_rm m
	must map m e access=ro
	nothing_written
	must unmap m
	must remote "store $C/exports/e/enable 0; settings $C/exports/e read_only=0 allow_any_host=0; mkdir $C/exports/e/hosts/$(show $C/host_name); store $C/exports/e/hosts/$(show $C/host_name)/access ro; store $C/exports/e/enable 1"
	must map_make m e
	refused EROFS "$C/maps/m/enable" 1
	must map_rm m
	must map m e access=ro
	nothing_written
	must unmap m
	must remote "store $C/exports/e/hosts/$(show $C/host_name)/access rw"
	must map m e
	must direct_write /run/data "$DEV" bs=4k count=1
	must unmap m
	# The device itself.
	must remote "store $C/exports/e/enable 0; blockdev --setro $BACK"
	got=$(remote "errno_of store $C/exports/e/enable 1")
	[[ $got =~ ^(EROFS|EACCES)$ ]] || bad "offering a read-only device to be written is $got"
	must remote "store $C/exports/e/read_only 1; store $C/exports/e/enable 1"
	must map m e access=ro
	nothing_written
	must unmap m
}
nothing_written() {
	local writes
	random /run/data 1
	writes=$(remote "io $BACK writes")
	is "blockdev --getro" "$(blockdev --getro "$DEV")" 1
	is "a write" "$(errno_of direct_write /run/data "$DEV" count=1)" EPERM
	is "zeroing it" "$(errno_of blkdiscard -z "$DEV")" EPERM
	must direct_read "$DEV" /dev/null count=1
	# Not even root's request to make it writable.
	blockdev --setrw "$DEV" 2>/dev/null && outcome direct_write /run/data "$DEV" count=1 && [ "$GOT" = OK ] && bad "a read-only disk was written"
	is "writes on the server" "$(remote "io $BACK writes")" "$writes"
}

exclusive() {
	not_local
	back "null_disk fbn 16"
	must serve_block e "$BACK"
	is "another user of an exported device" "$(remote "errno_of blkdiscard $BACK")" EBUSY
	is "a second export of it" "$(remote "errno_of export_block f $BACK")" EBUSY
	is "its reason" "$(remote "show $C/exports/f/last_error" | cut -d ' ' -f 1)" EBUSY
	must remote "rmdir $C/exports/f; store $C/exports/e/enable 0"
	must remote "mkfs.ext4 -q $BACK && mkdir -p /run/mnt && modprobe ext4 && mount $BACK /run/mnt"
	is "exporting a mounted device" "$(remote "errno_of store $C/exports/e/enable 1")" EBUSY
	must remote "umount /run/mnt; store $C/exports/e/enable 1"
}

no_device() {
	not_local
	is "a path that leads nowhere" "$(remote "errno_of export_block e /dev/nothing")" ENOENT
	must remote "rmdir $C/exports/e"
	is "a file" "$(remote "errno_of export_block e $HERE/lib.sh")" ENOTBLK
	must remote "rmdir $C/exports/e"
	is "a character device" "$(remote "errno_of export_block e /dev/null")" ENOTBLK
	must remote "rmdir $C/exports/e"
	must remote "mkdir $C/exports/e && store $C/exports/e/kind block"
	is "no path" "$(remote "errno_of store $C/exports/e/enable 1")" EINVAL
}

max_clients() {
	local first
	not_local
	disk_of "null_disk fbn 8"
	must map_make n e
	refused EBUSY "$C/maps/n/enable" 1
	must unmap m
	must map_on n
	must unmap n
	must remote "store $C/exports/e/enable 0; store $C/exports/e/max_clients 2; store $C/exports/e/enable 1"
	must map m e queues=1
	first=$DEV
	must map n e queues=1
	random /run/data 1
	must direct_write /run/data "$DEV" seek=3
	must direct_read "$first" /run/back skip=3 count=1
	cmp /run/data /run/back || wrong "the first client does not see what the second one wrote"
	must unmap n
	must unmap m
}

scenario null_blk "null_blk's limits in all their kinds"
scenario loop "a loop device's limits"
scenario brd "a RAM disk's limits"
scenario scsi_debug "a SCSI disk's limits"
scenario misaligned "a disk that does not begin at a physical block"
scenario mapper "a size that is no multiple of a page"
scenario read_only "read-only for everybody, for a host, by itself"
scenario exclusive "an exported device is nobody else's, and somebody else's cannot be exported"
scenario no_device "what is no block device cannot be exported"
scenario max_clients "as many clients as max_clients says see the same disk"
run_scenarios
