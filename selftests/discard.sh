#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Discards, zeroes and secure erases reach the server's device: these blocks and no others.
. "$(dirname "$0")/lib.sh"
MIB=16
! debug_kernel || MIB=4

# filled: the disk and /run/data are full of the same bytes.
filled() { must random /run/data $MIB; must direct_write /run/data "$DEV"; }
# zero FIRST COUNT: these blocks of 4 KiB of /run/data.
zero() { must dd if=/dev/zero of=/run/data bs=4096 seek="$1" count="$2" conv=notrunc status=none; }
# content WHAT: of the disk and of the device on the server it is /run/data.
content() {
	must direct_read "$DEV" /run/back
	cmp /run/data /run/back || wrong "$1: not exactly these bytes became zero"
	same_data "$1, on the server" "$(remote "dd if=$BACK iflag=direct bs=1M status=none | sha256sum")" "$(sha256sum </run/data)"
}
# discarded: sectors that the server's device was told to discard.
discarded() { remote "io $BACK discard_sectors"; }

reaches() {
	local before
	needs_module null_blk
	# null_blk forgets what is discarded.
	disk_of "null_disk fbn $MIB discard=1 blocksize=4096"
	filled
	before=$(discarded)
	must blkdiscard -o 8192 -l 12288 "$DEV"
	zero 2 3
	must blkdiscard -o 1M -l 2M "$DEV"
	zero 256 512
	content discard
	is "sectors discarded on the server" $(($(discarded) - before)) $((24 + 4096))
	must blkdiscard "$DEV"
	zero 0 $((MIB << 8))
	content "all of it"
	filled
	before=$(discarded)
	must fio --name=trim --filename="$DEV" --ioengine=libaio --direct=1 --rw=randtrim --bs=4k --iodepth=16 --number_ios=256 --norandommap=0 --output=/run/fio.out
	is "sectors of 256 small ones" $(($(discarded) - before)) 2048
	must unmap m
}

# zeroes LINE [holes]: with holes, the device can make them.
zeroes() {
	local mib
	disk_of "$1"
	mib=$(($(blockdev --getsize64 "$DEV") >> 20))
	[ "$mib" = $MIB ] || MIB=$mib
	filled
	# First the hole: a device that finds it cannot do one kind of zeroes offers none after
	# that.
	if [ -n "${2:-}" ]; then
		must fallocate --punch-hole -o 2M -l 64K "$DEV"
		zero 512 16
		content "a hole"
	fi
	must blkdiscard -z -o 4096 -l 8192 "$DEV"
	zero 1 2
	must blkdiscard -z -o 1M -l 1M "$DEV"
	zero 256 256
	must fallocate --zero-range -o 3M -l 64K "$DEV"
	zero 768 16
	content "write zeroes"
	must unmap m
}
zeroes_null() { needs_module null_blk; zeroes "null_disk fbn $MIB discard=1"; }
zeroes_loop() { needs_module loop; zeroes "loop_disk \$(loop_file f $MIB) --direct-io=on" holes; }
zeroes_scsi() { needs_module scsi_debug; zeroes "scsi_disk $MIB lbpu=1 lbpws=1 lbprz=1" holes; }

# A file below a loop device, and SCSI's map of blocks, show what is still there.
gives_back() {
	local before
	needs_module loop
	disk_of "loop_disk \$(loop_file f $MIB)"
	filled
	before=$(remote 'stat -c %b /run/loop/f')
	must blkdiscard -o 1M -l 2M "$DEV"
	is "blocks of the file" "$(remote 'stat -c %b /run/loop/f')" $((before - 4096))
	zero 256 512
	content "discard on a file"
	must unmap m
}
gives_back_scsi() {
	needs_module scsi_debug
	disk_of "scsi_disk $MIB lbpu=1 lbprz=1"
	filled
	must blkdiscard -o 1M -l 2M "$DEV"
	is "SCSI's map" "$(remote 'cat /sys/bus/pseudo/drivers/scsi_debug/map')" "0-2047,6144-$(((MIB << 11) - 1))"
	must unmap m
}

none_offered() {
	needs_module null_blk
	disk_of "null_disk fbn $MIB"
	is "discard_max_bytes" "$(queue_file "$DEV" discard_max_bytes)" 0
	is "blkdiscard" "$(errno_of blkdiscard "$DEV")" EOPNOTSUPP
	filled
	# It is written, then.
	must blkdiscard -z -o 1M -l 1M "$DEV"
	zero 256 256
	content "write zeroes"
	must unmap m
}

# fstrim, and mount -o discard, of a file system that had something and has lost it.
trim() {
	local before
	needs_module null_blk
	disk_of "null_disk fbn 64 discard=1 blocksize=4096"
	must mkfs.ext4 -q -O ^has_journal -E nodiscard "$DEV"
	mkdir -p /run/mnt
	must mount -o nodiscard "$DEV" /run/mnt
	must random /run/mnt/kept 2
	must random /run/mnt/gone 4
	sha256sum </run/mnt/kept >/run/sum
	must sync -f /run/mnt
	must rm /run/mnt/gone
	must sync -f /run/mnt
	before=$(discarded)
	must fstrim /run/mnt
	[ $(($(discarded) - before)) -ge 8192 ] || bad "fstrim discarded $(($(discarded) - before)) sectors on the server, less than the file had"
	must umount /run/mnt
	must mount "$DEV" /run/mnt
	same_data "the file that was kept" "$(sha256sum </run/mnt/kept)" "$(cat /run/sum)"
	must umount /run/mnt
	must fsck.ext4 -fn "$DEV" >/run/fsck 2>&1
	must unmap m
}

# No disk that a guest can have has secure erases. So this host maps that of a server in user space,
# exports the map, and maps the export.
erases() {
	local eraser=10.9.0.77 own=10.9.0.78 back
	unset FARBLK_AGENT FARBLK_REMOTE
	not_local
	needs python3
	needs_user_rdma
	must server_address $eraser
	at_exit "ip addr del $eraser/24 dev $(rxe_netdev)"
	must server_address $own
	at_exit "ip addr del $own/24 dev $(rxe_netdev)"
	rm -f /run/erased
	coproc python3 "$HERE/eraser.py" $eraser /run/erased
	at_exit "kill $COPROC_PID 2>/dev/null"
	read -r back <&"${COPROC[0]}" && [ "$back" = ready ] || skip "user space has no RDMA"
	FARBLK_SERVER=$eraser
	must map n e
	back=$DEV
	must port_add p $own
	must export_block over "$back"
	FARBLK_SERVER=$own
	must map m over
	is "discard_max_bytes" "$(queue_file "$DEV" discard_max_bytes)" 0
	must random /run/data 8
	must direct_write /run/data "$DEV"
	: >/run/erased
	must blkdiscard --secure --offset 1M --length 2560K "$DEV"
	zero 256 640
	is "what the last server got" "$(</run/erased)" "$(printf 'erase %s\n' "1048576 1048576" "2097152 1048576" "3145728 524288")"
	must direct_read "$DEV" /run/back
	cmp /run/data /run/back || wrong "not exactly these bytes were erased"
	is "blkdiscard" "$(errno_of blkdiscard "$DEV")" EOPNOTSUPP
	must unmap m
	must store "$C/exports/over/enable" 0
	must unmap n
}

scenario reaches "discards reach the device, exactly these blocks"
scenario gives_back "discards give a file's blocks back"
scenario gives_back_scsi "discards unmap a SCSI disk's blocks"
scenario zeroes_null "zeroes, on null_blk"
scenario zeroes_loop "zeroes and holes, on a file"
scenario zeroes_scsi "zeroes and holes, on a SCSI disk"
scenario none_offered "no discard where the device has none"
scenario erases "secure erases get through two servers"
scenario trim "fstrim gives back what a file system does not use, and nothing else"
run_scenarios
