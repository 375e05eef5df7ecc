#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: brings up all peers beside each other, then asks them in turn, so that a drift
# of the machine hits all. BENCH_MODE (of the file jobs), BENCH_PEERS, BENCH_REPEATS, BENCH_MIB
# (size of the disks), BENCH_POLL (poll queues of each). Results: out/fio.JOB.REPEAT.json for all
# that have a disk, out/PEER.JOB.REPEAT.json for the others, and out/PEER.error if it did not come
# up: the others are measured all the same.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit

# polls DEVICE
polls() { [ "$(cat "/sys/block/${1#/dev/}/queue/io_poll" 2>/dev/null)" = 1 ]; }

# give_up_cpu1 irq|poll: who polls has CPU 1 for himself. A thread of rxe's or of the server that
# wakes up there would wait for the next tick, as the poller does not sleep.
give_up_cpu1() {
	local cpus=$all_cpus
	[ "$1" = irq ] || cpus=$(printf %x $((0x$all_cpus & ~2)))
	echo "$cpus" >/sys/devices/virtual/workqueue/cpumask
}
all_cpus=$(cat /sys/devices/virtual/workqueue/cpumask)

# measure: the job that the loop below has read. One fio measures all disks, one after the other:
# to start it takes longer than to measure one.
measure() {
	local peer words=()
	words=(--name=global --stonewall --rw="$rw" --bs="$bytes" --iodepth="$depth" --numjobs="$jobs" --group_reporting --runtime="${ms}ms" --time_based
		--ioengine=io_uring --direct=1 --thread --norandommap --scramble_buffers=0 --lat_percentiles=1 --percentile_list=50:90:99:99.9)
	[ "$completion" = irq ] || words+=(--hipri --cpus_allowed=1)
	for peer in "${up[@]}"; do
		if [ "${device[$peer]}" != none ]; then
			[ "$completion" = poll ] && ! polls "${device[$peer]}" || words+=(--name="$peer" --filename="${device[$peer]}")
		elif [ "$jobs" = 1 ]; then
			(. ./peer.sh "$peer" && peer_measure "$rw" "$bytes" "$depth" "$ms" "$completion") >"out/$peer.$name.$repeat.json" || { echo "peer $peer: $name failed"; rc=1; }
		fi
	done
	fio --output-format=json "${words[@]}" >"out/fio.$name.$repeat.json" || { echo "fio: $name failed"; rc=1; }
}

declare -A device
rc=0
up=()
(. ./peer.sh brd && disk_up) || exit
for peer in $BENCH_PEERS; do
	if device[$peer]=$(. ./peer.sh "$peer" && peer_up 2>"out/$peer.error"); then
		up+=("$peer")
		rm "out/$peer.error"
	else
		echo "peer $peer does not come up: $(tail -n 1 "out/$peer.error")"
		(. ./peer.sh "$peer" && peer_down) >/dev/null 2>&1
	fi
done
# A disk with one queue, which is what one CPU makes, gets mq-deadline by default, others none: that
# alone is worth 70 % of nvme's time per I/O at depth 32.
for scheduler in /sys/block/*/queue/scheduler; do echo none >"$scheduler"; done

for ((repeat = 1; repeat <= BENCH_REPEATS; repeat++)); do
	while read -r modes name completion rw bytes depth jobs ms _; do
		[[ ,$modes, = *,$BENCH_MODE,* ]] || continue
		give_up_cpu1 "$completion"
		measure </dev/null
	done <"jobs"
done

for ((i = ${#up[@]} - 1; i >= 0; i--)); do
	(. ./peer.sh "${up[i]}" && peer_down) || { echo "peer ${up[i]}: not brought down"; rc=1; }
done
exit $rc
