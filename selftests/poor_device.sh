#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A server whose RDMA device lacks something, or refuses it. The module that pretends so is a patched build: tools/build broken,
# for the debug kernels.
. "$(dirname "$0")/lib.sh"

# patched NAME: that patch is in effect in the server's module, until the scenario ends.
patched() {
	[ -e "${FARBLK_BROKEN:-}" ] || skip "FARBLK_BROKEN is no module that is broken on purpose"
	needs_module null_blk
	trap 'clean_all; remote "! loaded || remove_module; load_module"' EXIT
	must remote "remove_module && FARBLK_KO=$FARBLK_BROKEN load_module $(broken "$1")"
}

verified() {
	must fio --name=verify --filename="$DEV" --direct=1 --ioengine=libaio --numjobs=2 --size=50% --offset_increment=50% \
		--rw=randrw --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting --output=/run/fio.out "$@"
}

# Some devices have no shared receive queues (irdma with an E810): each connection has receives of its own.
no_srq() {
	patched no-srq
	disk_of "null_disk fbi 32"
	[[ " $(remote "rdma resource show") " == *" srq 0 "* ]] || bad "the server has a shared receive queue: $(remote "rdma resource show")"
	verified --bsrange=512-1m --iodepth=64 --io_size=8m
	must unmap m
	# All receives of the connections are given back, and others take their places.
	must map m e
	verified --bsrange=4k-64k --iodepth=16 --io_size=4m
	must unmap m
}

# A device may refuse to fetch the data of a write. The server answers that command all the same.
refused_reads() {
	local dd
	patched refused-reads
	disk_of "null_disk fbu 8 blocksize=512"
	must direct_write /dev/zero "$DEV" bs=4k count=1
	dd if=/dev/zero of="$DEV" bs=64k count=1 oflag=direct 2>/run/dd.out &
	dd=$!
	wait_for 20 ended $dd || die "a write is never answered: $(grep -h . "$C"/maps/m/{state,last_error})"
	grep -q "Input/output error" /run/dd.out || bad "the write ends with $(cat /run/dd.out)"
	is state "$(show "$C/maps/m/state")" live
	must direct_write /dev/zero "$DEV" bs=4k count=1
	must unmap m
}
ended() { ! kill -0 "$1" 2>/dev/null; }

scenario no_srq "a server whose device has no shared receive queues"
scenario refused_reads "a server whose device does not fetch the data of a write"
run_scenarios
