#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What is read is what was written.
. "$(dirname "$0")/lib.sh"
MIB=32 SMALL=3m LARGE=8m DEPTHS="1 8 64"
! is_short || MIB=8 SMALL=256k LARGE=2m DEPTHS="1 64"

# verified OPTION...: two jobs write and read back, each in its half.
verified() {
	must fio --name=verify --filename="$DEV" --direct=1 --ioengine=libaio --numjobs=2 --size=50% --offset_increment=50% \
		--rw=randrw --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting --output=/run/fio.out "$@"
	[ ! -s /run/fio.err ] || bad "$(cat /run/fio.err)"
}

# sizes_and_depths BLOCK_SIZE: all depths, and block sizes from one block to the largest request.
sizes_and_depths() {
	local depth
	must serve e ${MIB}M "block_size=$1"
	must map m e
	is logical_block_size "$(cat "/sys/block/${DEV#/dev/}/queue/logical_block_size")" "$1"
	is "the disk's size" "$(blockdev --getsize64 "$DEV")" $((MIB << 20))
	is "the map's size" "$(show "$C/maps/m/size")" $((MIB << 20))
	for depth in $DEPTHS; do
		verified --bsrange="$1-1m" --iodepth=$depth
	done
	verified --bs="$1" --iodepth=32 --io_size=$SMALL
	verified --bsrange=4k-64k --iodepth=16 --direct=0
	must unmap m
}
blocks_of_512() { sizes_and_depths 512; }
blocks_of_4096() { sizes_and_depths 4096; }

# Odd sizes make fio's buffers begin anywhere in a page and cross its end.
odd_offsets() {
	must serve e ${MIB}M block_size=512
	must map m e
	verified --bs=1536 --iodepth=16 --io_size=$SMALL
	verified --bs=66048 --iodepth=4 --io_size=$LARGE
	verified --bsrange=512-128k --bs_unaligned=0 --iodepth=8 --io_size=$LARGE --offset=512
	is "a direct read of 1000 bytes" "$(errno_of dd if="$DEV" of=/dev/null iflag=direct bs=1000 count=1 status=none)" EINVAL
	must unmap m
}

# A little more than a slab: each connection finds the rest where the others do.
little_more_than_a_slab() {
	local i
	must serve e 65M
	random /run/data 1
	must map m e
	must direct_write /run/data "$DEV" seek=64
	for i in 1 2 3 4; do
		must unmap m
		must map m e
		must direct_read "$DEV" /run/back skip=64
		cmp /run/data /run/back || wrong "connection $i sees other bytes"
	done
	must unmap m
}

ends_at_its_end() {
	local blocks
	must serve e 8M block_size=4096
	must map m e
	blocks=$((8 << 8))
	must direct_read "$DEV" /run/last bs=4k skip=$((blocks - 1)) count=2
	is "what two blocks at the last one give" "$(stat -c %s /run/last)" 4096
	must direct_read "$DEV" /run/past bs=4k skip=$blocks count=1
	is "what is behind the end" "$(stat -c %s /run/past)" 0
	is "a write behind the end" "$(errno_of direct_write /run/last "$DEV" bs=4k seek=$blocks count=1)" ENOSPC
	must unmap m
}

write_zeroes() {
	must serve e ${MIB}M
	must map m e
	[ "$(cat "/sys/block/${DEV#/dev/}/queue/write_zeroes_max_bytes")" -gt 0 ] || bad "write zeroes is not offered"
	must random /run/data $MIB
	must direct_write /run/data "$DEV"
	must blkdiscard -z -o 4096 -l 8192 "$DEV"
	must blkdiscard -z -o $((MIB / 4 + 1))M -l $((MIB / 2 + 1))M "$DEV"
	must dd if=/dev/zero of=/run/data bs=4096 seek=1 count=2 conv=notrunc status=none
	must dd if=/dev/zero of=/run/data bs=1M seek=$((MIB / 4 + 1)) count=$((MIB / 2 + 1)) conv=notrunc status=none
	must direct_read "$DEV" /run/back
	cmp /run/data /run/back || wrong "not exactly these bytes became zero"
	must unmap m
}

# The bytes stay with the export, from map to map, and are those of the first map's writes; a new
# export is all zero.
content_stays() {
	must serve e ${MIB}M
	must map m e
	must cmp -n $((MIB << 20)) "$DEV" /dev/zero
	must random /run/data $MIB
	must dd if=/run/data of="$DEV" bs=1M conv=fsync status=none
	must unmap m
	must map m e
	must direct_read "$DEV" /run/back
	cmp /run/data /run/back || wrong "the content changed from map to map"
	must unmap m
	must map m e access=ro
	is "blockdev --getro" "$(blockdev --getro "$DEV")" 1
	is "a write to a read-only map" "$(errno_of direct_write /run/data "$DEV" count=1)" EPERM
	must direct_read "$DEV" /run/back
	cmp /run/data /run/back || wrong "a read-only map shows other content"
	must unmap m
}

# six add|del HOST: the IPv6 address of this host on the network of rxe0.
six() { ip -6 addr "$1" "fd00:9::$2/64" dev "$(rxe_netdev)" nodad; }

ipv6() {
	must six add 2
	must remote "$(declare -f six); six add 1"
	must random /run/data 8
	must remote "mkdir $C/ports/six && store $C/ports/six/addr [fd00:9::1]:7421 && wait_for 30 store $C/ports/six/enable 1"
	must serve e 8M
	must map_make m e
	must path m "addr=[fd00:9::1]:7421" source=fd00:9::2
	wait_for 30 map_on m || die "no map over IPv6"
	is "the path" "$(show "$C/maps/m/paths/a/addr")" "[fd00:9::1]:7421"
	must direct_write /run/data "$DEV"
	must direct_read "$DEV" /run/back
	cmp /run/data /run/back || wrong "another content came back"
	must unmap m
	must remote "store $C/ports/six/enable 0; $(declare -f six); six del 1"
	must six del 2
}

scenario blocks_of_512 "fio verifies random I/O of 512 bytes to 1 MiB at depths 1 to 64"
scenario blocks_of_4096 "the same with blocks of 4096 bytes"
scenario odd_offsets "buffers may begin anywhere in a page"
scenario little_more_than_a_slab "a size a little over that of a slab"
scenario ends_at_its_end "nothing can be read or written behind the end"
scenario write_zeroes "write zeroes clears exactly its range"
scenario content_stays "the content stays from map to map; a read-only map shows it too"
scenario ipv6 "the same over IPv6, on a port of another number"
run_scenarios
