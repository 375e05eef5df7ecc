#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Errors of the server's device come back as they are, for the sectors that they concern, and harm
# nothing else.
. "$(dirname "$0")/lib.sh"
FIRST=96 SECTORS=16

# outcomes read|write DEVICE: of each sector of a range by itself: "SECTOR ERRNO" where it is not
# OK.
outcomes() {
	local n
	for ((n = FIRST; n < FIRST + SECTORS; n++)); do
		if [ "$1" = read ]; then
			outcome dd if="$2" of=/dev/null iflag=direct bs=512 skip=$n count=1 status=none
		else
			outcome dd if=/dev/zero of="$2" oflag=direct conv=notrunc bs=512 seek=$n count=1 status=none
		fi
		[ "$GOT" = OK ] || echo "$n $GOT"
	done
}

# like_local read|write WANTED: the disk fails as the server's device does on the server, and that
# is as WANTED.
like_local() {
	local theirs ours
	theirs=$(remote "FIRST=$FIRST SECTORS=$SECTORS; $(declare -f outcomes); outcomes $1 $BACK")
	ours=$(outcomes "$1" "$DEV")
	is "errors of ${1}s on the server" "${theirs//$'\n'/,}" "$2"
	is "errors of ${1}s" "${ours//$'\n'/,}" "$2"
}
# on ERRNO SECTOR...
on() { local s list=""; for s in "${@:2}"; do list+="$s $1,"; done; echo "${list%,}"; }

# alive: the session is what it was, and the rest of the disk works.
alive() {
	if ! is_local; then
		is "state" "$(show "$C/maps/m/state")" live
		no_error maps/m
	fi
	random /run/data 1
	must direct_write /run/data "$DEV" seek=2
	must direct_read "$DEV" /run/back skip=2 count=1
	cmp /run/data /run/back || wrong "the rest of the disk is not what was written"
}

badblocks() {
	needs_module null_blk
	disk_of "null_disk fbn 4 blocksize=512 badblocks=+100-103"
	like_local read "$(on EIO 100 101 102 103)"
	like_local write "$(on EIO 100 101 102 103)"
	# A request fails with any of its sectors, and no other one beside it.
	is "a read across them" "$(errno_of direct_read "$DEV" /dev/null count=1)" EIO
	ends "the blocks before" OK dd if="$DEV" of=/dev/null iflag=direct bs=512 count=100 status=none
	# Requests that were merged fail together, on any disk; the server's may merge, too.
	must store "/sys/class/block/${DEV##*/}/queue/nomerges" 2
	must remote "store /sys/class/block/fbn/queue/nomerges 2"
	must fio --name=all --filename="$DEV" --direct=1 --ioengine=libaio --rw=read --bs=4k --size=1m --iodepth=32 --continue_on_error=io --output-format=json \
		--output=/run/fio.json --ignore_error=EIO
	is "failed requests of 256" "$(sed '/^{/,$!d' /run/fio.json | jq .jobs[0].total_err)" 1
	alive
	# What the device has got over, the disk has, too.
	must remote "store /sys/kernel/config/nullb/fbn/badblocks -100-103"
	like_local read ""
	must unmap m
}

dm_error() {
	needs_module dm_mod
	disk_of "d=\$(null_disk fbn 4); dm_disk error \"0 100 linear \$d 0
100 8 error
108 8084 linear \$d 108\""
	like_local read "$(on EIO {100..107})"
	like_local write "$(on EIO {100..107})"
	alive
	must unmap m
}

flaky_writes() {
	needs_module dm_flakey
	disk_of "d=\$(null_disk fbn 4); dm_disk flaky \"0 104 linear \$d 0
104 4 flakey \$d 104 0 60 1 error_writes
108 8084 linear \$d 108\""
	like_local read ""
	like_local write "$(on EIO 104 105 106 107)"
	alive
	must unmap m
}
flaky_reads() {
	needs_module dm_flakey
	disk_of "d=\$(null_disk fbn 4); dm_disk flaky \"0 104 linear \$d 0
104 4 flakey \$d 104 0 60 1 error_reads
108 8084 linear \$d 108\""
	like_local read "$(on EIO 104 105 106 107)"
	like_local write ""
	alive
	must unmap m
}

# A device that takes what is written to it and flushes nothing.
failed_flush() {
	needs_module dm_flakey
	disk_of "d=\$(null_disk fbn 4 cache_size=2); dm_disk flaky \"0 8192 flakey \$d 0 0 60 1 error_writes\""
	is "a flush on the server" "$(remote "errno_of sync $BACK")" "$(errno_of sync "$DEV")"
	is "a write with O_DSYNC" "$(errno_of dd if=/dev/zero of="$DEV" bs=4k count=1 oflag=direct,dsync conv=notrunc status=none)" EIO
	must direct_read "$DEV" /dev/null count=1
	must unmap m
}

no_space() {
	needs_module dm_thin_pool
	# 1 MiB of pool, in pieces of 64 KiB, for a disk of 4 MiB.
	disk_of "m=\$(null_disk fbm 4) d=\$(null_disk fbd 1); p=\$(dm_disk pool \"0 2048 thin-pool \$m \$d 128 0 1 error_if_no_space\") && dmsetup message farblk-pool 0 'create_thin 0' && dm_disk thin \"0 8192 thin \$p 0\""
	random /run/data 1
	must direct_write /run/data "$DEV"
	is "a write that finds no space" "$(errno_of direct_write /run/data "$DEV" seek=2)" ENOSPC
	is "the same on the server" "$(remote "errno_of dd if=/dev/zero of=$BACK oflag=direct conv=notrunc bs=64k seek=40 count=1 status=none")" ENOSPC
	must direct_read "$DEV" /run/back count=1
	cmp /run/data /run/back || wrong "what had space is not there"
	# Discards make room; the pool gives it out after its next commit.
	must blkdiscard -l 512K "$DEV"
	wait_for 30 room || bad "no room after a discard"
	! is_local || { must unmap m; return; }
	is "state" "$(show "$C/maps/m/state")" live
	must unmap m
}

room() { sync "$DEV" && dd if=/dev/zero of="$DEV" oflag=direct conv=notrunc bs=64k seek=40 count=1 status=none; }

medium() {
	needs_module scsi_debug
	disk_of "scsi_disk 4 medium_error_start=100 medium_error_count=4 opts=2"
	like_local read "$(on ENODATA 100 101 102 103)"
	alive
	must unmap m
}

# Buffered: the page with the bad sector is not read, the one that could not be written is told of
# at fsync.
buffered() {
	needs_module dm_mod
	disk_of "d=\$(null_disk fbn 4); dm_disk error \"0 2048 linear \$d 0
2048 8 error
2056 6136 linear \$d 2056\""
	is "a buffered read" "$(errno_of dd if="$DEV" of=/dev/null bs=4k skip=256 count=1 status=none)" EIO
	is "fsync" "$(errno_of dd if=/dev/zero of="$DEV" bs=4k seek=256 count=1 conv=notrunc,fsync status=none)" EIO
	ends "the block behind it" OK dd if=/dev/zero of="$DEV" bs=4k seek=257 count=1 conv=notrunc,fsync status=none
	must unmap m
}

# Another table takes away what the device promised when it was exported: that it can say that it
# would have to wait.
loses_nowait() {
	needs_module dm_flakey
	disk_of "dm_disk nowait \"0 8192 linear \$(null_disk fbn 4) 0\""
	alive
	must remote "dmsetup reload farblk-nowait --table '0 8192 flakey /dev/fbn 0 600 0' && dmsetup resume farblk-nowait"
	alive
	ends "a flush" OK sync "$DEV"
	must unmap m
}

# The server's device is a map itself, which has lost its server: no path of ours is to blame.
lost_backing() {
	! is_local || skip "a local disk has no server"
	disk_of "port_add p \$FARBLK_SERVER && export_ram r 8M && map inner r no_path_timeout_ms=0 >/dev/null 2>&1 && echo \$DEV"
	must direct_write /dev/zero "$DEV" count=1
	must remote "store $C/exports/r/enable 0 && wait_for 30 grep -q failed $C/maps/inner/state"
	ends "a read" EIO timeout -s KILL 60 dd if="$DEV" of=/dev/null iflag=direct bs=4k count=1 status=none
	ends "a write" EIO timeout -s KILL 60 dd if=/dev/zero of="$DEV" oflag=direct conv=notrunc bs=4k count=1 status=none
	is "state" "$(show "$C/maps/m/state")" live
	must unmap m
}

scenario badblocks "bad blocks: EIO on these sectors"
scenario dm_error "a part that fails: EIO on these sectors"
scenario flaky_writes "only writes fail"
scenario flaky_reads "only reads fail"
scenario failed_flush "a flush fails"
scenario no_space "no space: ENOSPC"
scenario medium "a medium error: ENODATA on these sectors"
scenario buffered "the page cache tells of errors"
scenario loses_nowait "a device that has to wait where it had not"
scenario lost_backing "a device whose own path is lost: EIO"
run_scenarios
