#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What an administrator turns while there is I/O, and I/O from odd places: nothing is lost, nothing
# is misread. One host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE FARBLK_SERVER
ROUNDS=12
! debug_kernel || ROUNDS=4

disk() {
	needs_module null_blk
	disk_of "null_disk fbk 32 cache_size=2 discard=1" queues=2
}

# under_load COMMAND...: COMMAND, while blocks are written and read back.
under_load() {
	local pid
	fio --name=load --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bsrange=512-64k --iodepth=16 --size=16m --verify=crc32c --verify_fatal=1 \
		--verify_backlog=64 --time_based --runtime=600 --output=/run/fio.out &
	pid=$!
	sleep 0.5
	"$@"
	kill -0 $pid 2>/dev/null || { bad "fio has ended: $(tail -n 5 /run/fio.out)"; return; }
	kill -INT $pid
	wait $pid
	grep -q 'err= 0' /run/fio.out || bad "fio: $(grep err= /run/fio.out)"
}

# queue_set FILE VALUE
queue_set() { must store "/sys/class/block/${DEV##*/}/queue/$1" "$2"; }

schedulers() {
	disk
	under_load every_scheduler
	must unmap m
}
every_scheduler() {
	local n name names
	modprobe -aq bfq kyber-iosched mq-deadline
	names=$(queue_file "$DEV" scheduler | tr -d '[]')
	note "schedulers: $names"
	for ((n = 0; n < ROUNDS; n++)); do
		for name in $names; do
			queue_set scheduler "$name"
			queue_set nr_requests $((4 + n * 8))
			sleep 0.1
		done
	done
}

limits() {
	disk
	under_load every_limit
	must unmap m
}
every_limit() {
	local n most
	most=$(queue_file "$DEV" max_hw_sectors_kb)
	for ((n = 0; n < ROUNDS; n++)); do
		queue_set max_sectors_kb 4
		queue_set rq_affinity 2
		queue_set nomerges 2
		queue_set read_ahead_kb 0
		queue_set iostats 0
		sleep 0.1
		queue_set max_sectors_kb "$most"
		queue_set rq_affinity 1
		queue_set nomerges 0
		queue_set read_ahead_kb 1024
		queue_set iostats 1
		must blockdev --flushbufs "$DEV"
		must blockdev --rereadpt "$DEV"
		sleep 0.1
	done
}

read_only() {
	disk
	must blockdev --setro "$DEV"
	ends "a write to a disk that was set read-only" EPERM direct_write /dev/zero "$DEV" count=1
	must direct_read "$DEV" /dev/null count=1
	must blockdev --setrw "$DEV"
	must direct_write /dev/zero "$DEV" count=1
	must unmap m
}

CPU1=/sys/devices/system/cpu/cpu1/online
hotplug() {
	[ -w $CPU1 ] || skip "there is no second CPU that can be turned off"
	disk
	under_load on_and_off
	must unmap m
}
on_and_off() {
	local n
	for ((n = 0; n < ROUNDS; n++)); do
		must store $CPU1 0
		sleep 0.2
		must store $CPU1 1
		sleep 0.2
	done
}

# Vectors of pieces that begin and end anywhere that the disk says it takes; what it does not take
# is refused, not misread.
vectors() {
	needs python3
	disk
	must python3 "$HERE/vectors.py" "$DEV" $((ROUNDS * 20))
	must unmap m
}

trap '[ ! -w $CPU1 ] || echo 1 >$CPU1' EXIT
scenario schedulers "every I/O scheduler, and the depth of its queue, under I/O"
scenario limits "the queue's limits under I/O"
scenario read_only "blockdev --setro"
scenario hotplug "a CPU goes and comes back under I/O"
scenario vectors "direct I/O from and to vectors of odd pieces"
run_scenarios
