#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Many maps at once, and more I/O than the server has memory for.
. "$(dirname "$0")/lib.sh"
BYTES=4m
! debug_kernel || BYTES=512k

# More connections to an export than one poller of the server has room for, and other exports beside
# it.
eight_and_three() {
	local i e devices=() jobs=()
	needs_module null_blk
	for e in 0 1 2 3; do
		must remote "null_disk fbn$e 32 blocksize=512 >/dev/null"
		must serve_block "e$e" "/dev/fbn$e" max_clients=8
	done
	for ((i = 0; i < 11; i++)); do
		must map "m$i" "e$((i < 8 ? 0 : i - 7))" queues=2 depth=128
		devices+=("$DEV")
		# Each has its part of the export.
		jobs+=("--name=m$i" "--filename=$DEV" "--offset=$((i % 8 * 4))m")
	done
	is_local || is "different disks" "$(printf '%s\n' "${devices[@]}" | sort -u | wc -l)" 11
	must fio --direct=1 --ioengine=libaio --rw=randwrite --bsrange=512-256k --iodepth=8 --size=4m --io_size=$BYTES --verify=crc32c --verify_fatal=1 --do_verify=1 \
		--output=/run/fio.out "${jobs[@]}"
	if ! is_local; then
		for e in 0 1 2 3; do is "clients of e$e" "$(remote "show $C/exports/e$e/clients")" $((e ? 1 : 8)); done
		for ((i = 0; i < 11; i++)); do is "state of m$i" "$(show "$C/maps/m$i/state")" live; done
	fi
	for ((i = 0; i < 11; i++)); do must unmap "m$i"; done
}

# 16 MiB of requests at once, for a server that has 2 MiB.
small_pool() {
	local waits
	not_local
	reload_server "load_module pool_size=$((2 << 20))"
	back "null_disk fbn 64"
	must serve_block e "$BACK"
	must map m e depth=128
	must fio --name=large --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bs=256k --iodepth=64 --size=32m --io_size=$((${BYTES%[mk]} * 4))${BYTES: -1} \
		--verify=crc32c --verify_fatal=1 --do_verify=1 --output=/run/fio.out
	must fio --name=largest --filename="$DEV" --direct=1 --ioengine=libaio --rw=randrw --bs=1m --iodepth=16 --size=32m --io_size=8m --output=/run/fio.out
	is state "$(show "$C/maps/m/state")" live
	no_error maps/m
	waits=$(remote "counter $D/server/connections waits") || die "no waits in $(remote "cat $D/server/connections")"
	note "$waits requests waited"
	[ "$waits" -gt 0 ] || bad "no request waited: the memory was not short"
	must unmap m
}

# The first receives of ten connections and more take all that receives may have of 2 MiB: each
# export gets its clients nevertheless, and all of them data memory.
small_pool_many() {
	local e jobs=()
	needs_module null_blk
	not_local
	reload_server "load_module pool_size=$((2 << 20))"
	for e in {0..9}; do
		must remote "null_disk fbn$e 32 blocksize=512 >/dev/null"
		must serve_block "e$e" "/dev/fbn$e"
		must map "m$e" "e$e" queues=2 depth=128
		jobs+=("--name=m$e" "--filename=$DEV")
	done
	must fio --direct=1 --ioengine=libaio --rw=randwrite --bsrange=512-256k --iodepth=8 --size=4m --io_size=512k --output=/run/fio.out "${jobs[@]}"
	for e in {0..9}; do
		is "state of m$e" "$(show "$C/maps/m$e/state")" live
		must unmap "m$e"
	done
}

scenario eight_and_three "8 maps of an export, and one of each of 3 others, all busy at once"
scenario small_pool "a server that has less memory than the requests want: they wait, none is lost"
scenario small_pool_many "ten exports on a server with memory for the receives of four"
run_scenarios
