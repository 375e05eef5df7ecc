#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: brings up all peers, then has each do the I/O of each job, and QEMU log the
# instructions of a part of it. BENCH_PEERS, BENCH_MIB, BENCH_POLL: as guest.sh. BENCH_JOBS:
# NAME:RW:DEPTH:WINDOWS:MIB, with blanks between them; so many logs of so many MiB are made.
# Results: out/PEER.JOB.json of fio, and out/kallsyms; the logs are on the host.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit

declare -A device
(. ./peer.sh brd && disk_up) || exit
for peer in $BENCH_PEERS; do
	device[$peer]=$(. ./peer.sh "$peer" && peer_up) || { echo "peer $peer does not come up"; exit 1; }
	[ -b "${device[$peer]}" ] || { echo "peer $peer is no block device"; exit 1; }
done
# As guest.sh.
for scheduler in /sys/block/*/queue/scheduler; do echo none >"$scheduler"; done
grep -i ' [tw] ' /proc/kallsyms >out/kallsyms
# Nobody writes to it: a read with a timeout sleeps without a process of its own.
mkfifo /tmp/nothing

# moved: KIB is what all disks together have read and written. brd has no statistics of its own.
moved() {
	local name number
	KIB=0
	while read -r name number; do
		case $name in pgpgin | pgpgout) KIB=$((KIB + number)) ;; esac
	done </proc/vmstat
}

# busy PID: waits until fio has the thread that does the I/O, beside two others, and has done some.
# A program that starts reads from a disk, too.
busy() {
	local first=0 i tasks
	for ((i = 0; i < 3000; i++)); do
		read -rt 0.005 <>/tmp/nothing
		tasks=("/proc/$1/task"/*)
		[ ${#tasks[@]} -ge 3 ] || continue
		moved
		[ "$first" != 0 ] || first=$KIB
		[ $((KIB - first)) -lt 800 ] || return 0
	done
	return 1
}

# io PEER RW DEPTH MILLISECONDS: as peer_measure of peer.sh does it.
io() {
	exec fio --name=bench --filename="${device[$1]}" --rw="$2" --bs=4096 --iodepth="$3" --runtime="$4ms" --time_based --ioengine=io_uring --direct=1 \
		--thread --norandommap --scramble_buffers=0 --disk_util=0 --lat_percentiles=1 --percentile_list=50 --output-format=json </dev/null 9>&-
}

# trace PEER NAME RW DEPTH WINDOWS MIB: measures, and then has windows of the same logged. What is
# measured is not what is logged, as this script takes time of the CPU then.
trace() {
	local window pid rc=0
	(io "$1" "$3" "$4" 100) >"out/$1.$2.json" || return
	io "$1" "$3" "$4" 60000 >/dev/null 2>&1 &
	pid=$!
	for ((window = 1; window <= $5; window++)); do
		busy $pid || { echo "there is no I/O"; rc=1; break; }
		ask "trace $1.$2.$window $6" >/dev/null || { rc=1; break; }
	done
	kill -TERM $pid || { echo "fio has ended"; rc=1; }
	wait $pid
	return $rc
}

rc=0
for peer in $BENCH_PEERS; do
	for job in $BENCH_JOBS; do
		IFS=: read -ra words <<<"$job"
		trace "$peer" "${words[@]}" || { echo "peer $peer: ${words[0]} failed"; rc=1; }
	done
done
exit $rc
