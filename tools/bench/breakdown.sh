#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: brings up all peers, then has each do the I/O of each job, and QEMU log a part of its instructions.
# BENCH_PEERS, BENCH_MIB, BENCH_POLL: as guest.sh; BENCH_JOBS: NAME:RW:DEPTH:MIB (of the log) with blanks between them.
# Results: out/PEER.JOB.json of fio, out/kallsyms; the logs are the host's.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit

declare -A device
(. ./peer.sh brd && disk_up) || exit
for peer in $BENCH_PEERS; do
	device[$peer]=$(. ./peer.sh "$peer" && peer_up) || { echo "peer $peer does not come up"; exit 1; }
done
for scheduler in /sys/block/*/queue/scheduler; do echo none >"$scheduler"; done
# Text only.
grep -i ' [tw] ' /proc/kallsyms >out/kallsyms

# moved: KIB is what all disks together have read and written. brd keeps no statistics of its own.
moved() {
	local name number
	KIB=0
	while read -r name number; do
		case $name in pgpgin | pgpgout) KIB=$((KIB + number)) ;; esac
	done </proc/vmstat
}

# busy KIB: waits until they have moved so much more. The builtin read sleeps without a fork.
busy() {
	local first i
	moved
	first=$KIB
	for ((i = 0; i < 1000; i++)); do
		read -rt 0.01 <>"$pipe"
		moved
		[ $((KIB - first)) -lt "$1" ] || return 0
	done
	return 1
}
pipe=/tmp/nothing
mkfifo $pipe

rc=0
for peer in $BENCH_PEERS; do
	for job in $BENCH_JOBS; do
		IFS=: read -r name rw depth mib <<<"$job"
		(. ./peer.sh "$peer" && peer_measure "${device[$peer]}" "$rw" 4096 "$depth" 400 irq) >"out/$peer.$name.json" </dev/null 9>&- &
		if busy 2000; then
			ask "trace $peer.$name $mib" >/dev/null || rc=1
		else
			echo "peer $peer: no I/O"
			rc=1
		fi
		wait $! || { echo "peer $peer: $name failed"; rc=1; }
	done
done
exit $rc
