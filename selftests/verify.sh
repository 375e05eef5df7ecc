#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What is read from a block export is what was written, at all sizes, depths and settings.
. "$(dirname "$0")/lib.sh"
MIB=64 BYTES=2m
! debug_kernel && ! is_short || MIB=16 BYTES=256k

# disk [ATTRIBUTE=VALUE]...: a map with these settings.
disk() {
	must map m e "$@"
	is "the disk's size" "$(blockdev --getsize64 "$DEV")" $((MIB << 20))
}
backing() {
	needs_module null_blk
	back "null_disk fbn $MIB blocksize=512 $*"
	must serve_block e "$BACK"
}

# verified OPTION...: writes are read back with their checksums.
verified() {
	must fio --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --size=$BYTES --io_size=$BYTES --verify=crc32c --verify_fatal=1 \
		--do_verify=1 --group_reporting --output=/run/fio.out "$@"
}

# all_sizes OPTION...: block sizes side by side, each in a part of its own.
all_sizes() {
	local bs at=0 jobs=() step=$((MIB / 12))
	[ $step -gt 0 ] || step=1
	for bs in 512 1k 2k 4k 8k 16k 32k 64k 128k 256k 512k 1m; do
		jobs+=("--name=$bs" "--bs=$bs" "--offset=$((at * step))m")
		case $bs in 512 | 1k | 2k) jobs+=(--io_size=256k) ;; 1m) [ $BYTES != 256k ] || jobs+=(--size=1m --io_size=1m) ;; esac
		[ $bs != 512k ] || [ $BYTES != 256k ] || jobs+=(--size=1m --io_size=512k)
		at=$((at + 1))
	done
	verified "$@" "${jobs[@]}"
}

sizes() {
	local depth depths="1 8 64"
	! is_short || depths="1 64"
	backing
	disk
	for depth in $depths; do all_sizes --iodepth=$depth; done
	must unmap m
}
buffered() {
	local bs n
	backing
	disk
	all_sizes --direct=0 --iodepth=8 --fsync_on_close=1
	# A page of small blocks is a bio for each of them, and they are merged.
	random /run/data 1
	for bs in 512 1024 2048; do
		exec 5<>"$DEV"
		must blockdev --setbsz $bs "$DEV"
		for n in 1 2 3 5; do must dd if=/run/data of="$DEV" bs=$bs count=$((n * 4096 / bs)) seek=$((16384 / bs * n)) conv=notrunc,fsync status=none; done
		exec 5<&-
		for n in 1 2 3 5; do
			must direct_read "$DEV" /run/back bs=4096 count=$n skip=$((4 * n))
			cmp -n $((n * 4096)) /run/data /run/back || wrong "blocks of $bs bytes are not what was written"
		done
	done
	must unmap m
}
mixed() {
	backing
	disk
	must fio --name=mixed --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --numjobs=2 --size=50% --offset_increment=50% --bsrange=512-1m \
		--iodepth=16 --io_size=$((MIB / 4))m --verify=crc32c --verify_fatal=1 --do_verify=1 --output=/run/fio.out
	# Buffers begin anywhere in a page and cross its end.
	verified --name=odd --bs=1536 --iodepth=16 --io_size=256k
	verified --name=odder --bs=66048 --iodepth=4 --size=8m
	must unmap m
}

# The ends of what a map can be set to.
settings_matter() {
	local set sets=("depth=1" "inline_size=0" "queues=2 poll_queues=1 depth=2")
	is_short || sets+=("depth=1024" "inline_size=16384" "queues=2")
	not_local
	backing
	for set in "${sets[@]}"; do
		# shellcheck disable=SC2086
		disk $set
		verified --name="$set" --bsrange=512-64k --iodepth=32 --io_size=1m
		must unmap m
	done
}

POLLED=10
polled() {
	local file=$D/client/m/counters interrupts completions
	! is_local || ! debug_kernel || skip "null_blk, when it is polled itself, allocates memory where it may not sleep"
	backing "$(! is_local || echo poll_queues=1)"
	disk queues=1 poll_queues=1
	is io_poll "$(queue_file "$DEV" io_poll)" 1
	if ! is_local; then
		interrupts=$(counter "$file" interrupts) && completions=$(counter "$file" completions) || die "no interrupts or completions in $(cat "$file")"
	fi
	verified --name=polled --ioengine=io_uring --hipri=1 --bsrange=4k-128k --iodepth=8 --size=${POLLED}m --io_size=$BYTES
	if ! is_local; then
		note "$(cat "$file")"
		is "interrupts while everything was polled" "$(counter "$file" interrupts)" "$interrupts"
		[ "$(counter "$file" completions)" -gt "$completions" ] || bad "nothing was completed"
	fi
	# And those who do not poll are served beside them.
	verified --name=polled --ioengine=io_uring --hipri=1 --bs=4k --iodepth=4 --io_size=256k --name=not --ioengine=libaio --bs=4k --iodepth=4 --offset=8m --io_size=256k
	must unmap m
}

partitions() {
	needs sfdisk
	backing
	disk
	printf 'label: gpt\nstart=2048,size=4096\nstart=8192,size=8192\n' | sfdisk -q "$DEV" >/run/sfdisk 2>&1 || die "sfdisk: $(cat /run/sfdisk)"
	wait_for 20 test -b "$(part 2)" || die "no $(part 2): $(cat /run/sfdisk)"
	random /run/data 1
	must direct_write /run/data "$(part 2)" count=1
	must unmap m
	disk
	wait_for 20 test -b "$(part 2)" || die "no $(part 2) on the next map"
	is "the second one's size" "$(blockdev --getsize64 "$(part 2)")" 4194304
	must direct_read "$DEV" /run/back bs=1M skip=4 count=1
	cmp /run/data /run/back || wrong "the second partition is elsewhere"
	is "partitions that the server sees" "$(remote "sfdisk -l -q $BACK | grep -c 'Linux filesystem'")" 2
	printf 'label: dos\nstart=2048,size=2048\n' | sfdisk -q --wipe always "$DEV" >/run/sfdisk 2>&1 || die "sfdisk: $(cat /run/sfdisk)"
	wait_for 20 test -b "$(part 1)" || die "no $(part 1)"
	[ ! -e "$(part 2)" ] || bad "the old second partition is still there"
	must unmap m
}

scenario sizes "512 bytes to 1 MiB at depths 1 to 64, direct"
scenario buffered "512 bytes to 1 MiB through the page cache"
scenario mixed "sizes mixed at random, buffers that begin anywhere"
scenario settings_matter "every depth, inline size and number of queues"
scenario polled "io_uring with IOPOLL, without one interrupt"
scenario partitions "partition tables"
run_scenarios
