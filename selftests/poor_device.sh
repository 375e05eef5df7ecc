#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# An RDMA device that lacks something, or refuses it. The module that pretends so is a patched
# build: tools/build broken, for the debug kernels.
. "$(dirname "$0")/lib.sh"

# patched NAME: that patch is in effect in the server's module, until the scenario ends.
patched() {
	needs_broken
	needs_module null_blk
	reload_server "FARBLK_KO=$FARBLK_BROKEN load_module $(broken "$1")"
}

# patched_here NAME: the same of this host's module.
patched_here() {
	needs_broken
	two_hosts || skip "the server's module would be patched, too"
	at_exit 'clean_all; ! loaded || remove_module; must load_module'
	must remove_module
	FARBLK_KO=$FARBLK_BROKEN must load_module "$(broken "$1")"
}

verified() {
	must fio --name=verify --filename="$DEV" --direct=1 --ioengine=libaio --numjobs=2 --size=50% --offset_increment=50% \
		--rw=randrw --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting --output=/run/fio.out "$@"
}

# Some devices have no shared receive queues (irdma with an E810): each connection has receives of
# its own.
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
# A device may fail to deregister the region of a request whose path is lost. The request must not
# end before nothing can reach its memory; then it is sent again. The second loss is one in the
# replay: the disk is slow.
stuck_regions() {
	local fio i count
	needs_module null_blk
	needs_module dm-delay
	patched_here stuck-regions
	back "$(declare -f late_disk); late_disk 400"
	must serve_block e "$BACK"
	must map m e
	fio --name=stuck --filename="$DEV" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=64k-256k --size=8m --loops=3 \
		--verify=crc32c --verify_fatal=1 --do_verify=1 >/run/fio.out 2>&1 &
	fio=$!
	for ((i = 0; i < 4; i++)); do
		sleep 1
		count=$(reconnects)
		must remote "store $C/ports/p/enable 0 && store $C/ports/p/enable 1"
		wait_for 20 reconnected "$count" || die "the map does not come back: $(grep -h . "$C"/maps/m/{state,last_error})"
		# The replay has begun.
		sleep 0.2
		must remote "store $C/ports/p/enable 0 && store $C/ports/p/enable 1"
	done
	wait_for 120 ended $fio || die "I/O hangs: $(grep -h . "$C"/maps/m/{state,last_error})"
	wait $fio; fio_worked
	dmesg | grep -q "farblk: cannot deregister a memory region" || bad "no request had a region that stayed"
	is state "$(show "$C/maps/m/state")" live
	must unmap m
}
reconnects() { show "$C/maps/m/paths/a/reconnects"; }
reconnected() { [ "$(reconnects)" -gt "$1" ]; }
# late_disk MS: each of its I/Os takes that long.
late_disk() {
	local name
	modprobe dm-delay
	name=$(null_disk late 16) && dm_disk late "0 $(sectors "$name") delay $name 0 $1"
}

scenario no_srq "a server whose device has no shared receive queues"
scenario refused_reads "a server whose device does not fetch the data of a write"
scenario stuck_regions "a client whose device does not deregister the memory of requests"
run_scenarios
