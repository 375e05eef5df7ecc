#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What an administrator turns while there is I/O, and I/O from odd places: nothing is lost, nothing
# is misread. And the commands of Documentation/tuning.rst. One host.
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
	fio_worked
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

# page: what is given to a and b are commands of tuning.rst, as they stand there.
page() {
	local polls='--direct=1 --ioengine=io_uring --hipri --rw=randread --bs=4k' polled
	not_local
	needs farblk
	needs_module null_blk
	back "null_disk fbk 32"
	must serve_block vol1 "$BACK"
	must farblk map "$FARBLK_SERVER/vol1" >/run/page.out
	DEV=$(cat /run/page.out)
	# shellcheck disable=SC2086
	! fio --name=refused "--filename=$DEV" $polls --io_size=4k >/run/page.out 2>&1 && grep -q "Operation not supported" /run/page.out ||
		bad "polled I/O without poll queues: $(tail -n 3 /run/page.out)"
	must farblk -q unmap vol1
	b 'farblk map 10.0.0.1/vol1 --poll-queues 2'
	DEV=/dev/$(show "$C/maps/vol1/device")
	is "io_poll" "$(queue_file "$DEV" io_poll)" 1
	b 'fio --name=polled --filename=/dev/farblk/by-name/vol1 --direct=1 --ioengine=io_uring --hipri --rw=randread --bs=4k --runtime=10 --time_based'
	b 'farblk stats vol1 1 5'
	b 'cat /sys/kernel/debug/farblk/client/vol1/counters'
	polled=$(tail -n 2 /run/page.out | sed -nE 's/.* completions ([0-9]+) interrupts 0 .*/\1/p' | paste -sd+)
	[ "$((${polled:-0}))" -gt 100 ] || bad "the polled queues are not the last ones, or took no I/O: $(cat /run/page.out)"
	a 'cat /sys/kernel/debug/farblk/server/connections'
	grep -q '^export vol1 .* vector .* work_requests .* doorbells .* completions .* credit .* waits .* interrupts ' /run/page.out ||
		bad "server/connections: $(cat /run/page.out)"
	a 'farblk export create scratch --ram 4G --numa 0 --allow node-b'
	if [ -c /dev/cpu_dma_latency ]; then
		b 'exec 9>/dev/cpu_dma_latency && printf 0x0000000a >&9'
		is "the limit of idle states" "$(od -An -td4 /dev/cpu_dma_latency | tr -d ' ')" 10
	fi
	must unmap vol1
}
# a LINE, b LINE: both hosts of the page are this one.
a() { b "$1"; }
b() {
	local line=$1
	line=${line/10.0.0.1/$FARBLK_SERVER}
	line=${line/\/dev\/farblk\/by-name\/vol1/${DEV:-}}
	line=${line/--ram 4G/--ram 16M}
	line=${line/--runtime=10/--runtime=2}
	note "# $1"
	eval "$line" >/run/page.out 2>&1 || die "exit code $? of: $1: $(cat /run/page.out)"
}

trap '[ ! -w $CPU1 ] || echo 1 >$CPU1' EXIT
scenario schedulers "every I/O scheduler, and the depth of its queue, under I/O"
scenario limits "the queue's limits under I/O"
scenario read_only "blockdev --setro"
scenario hotplug "a CPU goes and comes back under I/O"
scenario vectors "direct I/O from and to vectors of odd pieces"
scenario page "the commands of Documentation/tuning.rst"
run_scenarios
