#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What changes about the server's device while it is mapped, changes about the disk.
. "$(dirname "$0")/lib.sh"

# becomes WHAT WANTED COMMAND...: what COMMAND prints is WANTED before long.
becomes() {
	local start=${EPOCHREALTIME/./}
	if wait_for 30 prints "${@:2}"; then
		note "$1 is $2 after $(((${EPOCHREALTIME/./} - start) / 1000)) ms"
	else
		bad "$1 is '$("${@:3}")', not '$2'"
	fi
}
prints() { [ "$("${@:2}")" = "$1" ]; }

# larger BYTES: the disk, the map and what is behind the old end.
larger() {
	becomes "the disk's size" "$1" blockdev --getsize64 "$DEV"
	is_local || is "the map's size" "$(show "$C/maps/m/size")" "$1"
	is_local || is "the export's size" "$(remote "show $C/exports/e/size")" "$1"
	random /run/data 1
	must direct_write /run/data "$DEV" seek=$((($1 >> 20) - 1))
	must direct_read "$DEV" /run/back skip=$((($1 >> 20) - 1))
	cmp /run/data /run/back || wrong "what is behind the old end is not what was written"
}

loop_grows() {
	needs_module loop
	disk_of "loop_disk \$(loop_file f 8)"
	random /run/first 8
	must direct_write /run/first "$DEV"
	must remote "truncate -s 12M /run/loop/f && losetup --set-capacity $BACK"
	larger $((12 << 20))
	# Under I/O, too.
	fio --name=load --filename="$DEV" --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=8 --size=8m --time_based --runtime=5 >/run/fio.out 2>&1 &
	sleep 1
	must remote "truncate -s 16M /run/loop/f && losetup --set-capacity $BACK"
	larger $((16 << 20))
	wait $! || bad "fio: $(tail -n 5 /run/fio.out)"
	must cmp -n $((8 << 20)) /run/first "$DEV"
	must unmap m
}

mapper_grows() {
	not_local
	needs_module dm_mod
	disk_of "dm_disk grows \"0 16384 linear \$(null_disk fbn 16) 0\""
	must remote "dmsetup reload farblk-grows --table '0 32768 linear /dev/fbn 0' && dmsetup resume farblk-grows"
	larger $((16 << 20))
	must unmap m
}

file_system_grows() {
	needs resize2fs
	needs_own_module ext4
	disk_of "loop_disk \$(loop_file f 16)"
	must mkfs.ext4 -q "$DEV"
	mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	must random /run/mnt/kept 2
	must remote "truncate -s 32M /run/loop/f && losetup --set-capacity $BACK"
	becomes "the disk's size" $((32 << 20)) blockdev --getsize64 "$DEV"
	must resize2fs "$DEV" >/run/resize 2>&1
	[ "$(df --output=size -k /run/mnt | tail -n 1)" -gt 20000 ] || bad "the file system is $(df --output=size -k /run/mnt | tail -n 1) KiB"
	must random /run/mnt/more 12
	must umount /run/mnt
	must fsck.ext4 -fn "$DEV" >/run/fsck 2>&1
	must unmap m
}

read_only() {
	not_local
	disk_of "loop_disk \$(loop_file f 8)"
	random /run/data 1
	must direct_write /run/data "$DEV"
	must remote "blockdev --setro $BACK"
	becomes "blockdev --getro" 1 blockdev --getro "$DEV"
	is "a write" "$(errno_of direct_write /run/data "$DEV")" EPERM
	must direct_read "$DEV" /run/back count=1
	cmp /run/data /run/back || wrong "another content came back"
	must remote "blockdev --setrw $BACK"
	becomes "blockdev --getro" 0 blockdev --getro "$DEV"
	must direct_write /run/data "$DEV" seek=1
	must unmap m
	# A map that was made to read stays so.
	must map m e access=ro
	must remote "blockdev --setro $BACK; blockdev --setrw $BACK; truncate -s 12M /run/loop/f && losetup --set-capacity $BACK"
	becomes "the disk's size" $((12 << 20)) blockdev --getsize64 "$DEV"
	is "blockdev --getro of a map to read" "$(blockdev --getro "$DEV")" 1
	must unmap m
}

scenario loop_grows "a device grows, idle and under I/O"
scenario mapper_grows "a device of the device mapper grows"
scenario file_system_grows "a mounted file system grows with it"
scenario read_only "a device becomes read-only, and writable again"
run_scenarios
