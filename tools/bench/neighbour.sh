#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest of tools/bench/neighbour: I/O of a map of a block export, alone and beside
# another host of the export, of each kind that BENCH_HOGS has, in turn, so that a drift of the
# machine hits all. BENCH_MIB, BENCH_REPEATS, BENCH_MS. Results: out/NAME.WITH.REPEAT.json of fio,
# and the server's counters.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit
# shellcheck source=tools/bench/peer.sh
. ./peer.sh farblk-block

# Name, what fio does, bytes, depth.
JOBS="
read_4k randread 4k 1
write_4k randwrite 4k 1
read_4k_qd8 randread 4k 8
read_64k randread 64k 1
write_64k randwrite 64k 1
read_64k_qd8 randread 64k 8"

die() { echo "$*" >&2; exit 1; }

# measure WITH REPEAT: all jobs.
measure() {
	local name rw bytes depth
	while read -r name rw bytes depth; do
		[ -n "$name" ] || continue
		fio --name=neighbour --filename="$device" --rw="$rw" --bs="$bytes" --iodepth="$depth" --runtime="${BENCH_MS}ms" --time_based --ioengine=io_uring \
			--direct=1 --thread --norandommap --size=16m --disk_util=0 --lat_percentiles=1 --percentile_list=50:99:99.9 \
			--output-format=json >"out/$name.$1.$2.json" </dev/null || die "fio: $name $1"
	done <<<"$JOBS"
	cat /sys/kernel/debug/farblk/server/connections >"out/connections.$1.$2"
}

# hog KIND: the other host, from now on.
hog() {
	rm -f /run/hog.stop
	python3 hostile.py "$ADDR" "hog_$1" >"out/$1.log" 2>&1 &
	hog=$!
	for _ in {1..100}; do
		! grep -q '^taken' "out/$1.log" || return 0
		sleep 0.1
	done
	die "the hog ($1) takes nothing: $(tail -n 3 "out/$1.log")"
}

# One host with two names: both have entries, and so memory of their own.
(disk_up && farblk_load) || die "no disk or no module"
modprobe -a ib_uverbs rdma_ucm || die "user space has no RDMA"
export=$farblk/exports/$object
mkdir $farblk/ports/bench && echo "$ADDR" >$farblk/ports/bench/addr && enable $farblk/ports/bench || die "no port"
mkdir "$export" && describe "$export" && echo 16 >"$export/max_clients" || die "no export"
for host in hog "$(cat $farblk/host_name)"; do
	mkdir "$export/hosts/$host" && echo rw >"$export/hosts/$host/access" || die "no entry for $host"
done
enable "$export" || die "the export is not enabled"
device=$(client_up "$ADDR") || die "no map"
for scheduler in /sys/block/*/queue/scheduler; do echo none >"$scheduler"; done

for ((repeat = 0; repeat <= BENCH_REPEATS; repeat++)); do
	# The first time does not count.
	measure alone "$repeat"
	for kind in $BENCH_HOGS; do
		hog "$kind"
		measure "$kind" "$repeat"
		touch /run/hog.stop
		wait "$hog" || die "the hog ($kind): $(tail -n 3 "out/$kind.log")"
		cat "out/$kind.log"
	done
done
cat /sys/kernel/debug/farblk/server/counters >out/counters
client_down && server_down
