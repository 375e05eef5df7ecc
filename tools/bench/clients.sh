#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: PEER (farblk or nvme), CLIENTS, QUEUES, KIND and SIZE of tools/bench/clients.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit
. ./meminfo.sh
C=/sys/kernel/config/farblk
BENCH_DISK=/dev/ram0
# How many are set up at a time.
PARALLEL=4

now() { date +%s.%N; }
# since TIME: seconds.
since() { awk -v a="$1" -v b="$(now)" 'BEGIN {printf "%.1f", b - a}'; }
# all: KiB of the kernel.
all() { memory | sed 's/.*"all": \([0-9]*\).*/\1/'; }
threads() { awk '/^Threads/ {n += $2} END {print n}' /proc/[0-9]*/status; }
# each FUNCTION: calls it for all numbers.
each() {
	local w i failed=0 tasks=()
	for ((w = 0; w < PARALLEL; w++)); do
		(for ((i = w; i < CLIENTS; i += PARALLEL)); do "$1" "$i" || exit; done) &
		tasks+=($!)
	done
	for w in "${tasks[@]}"; do wait "$w" || failed=1; done
	return $failed
}
# measured WHAT SECONDS BEFORE: a line of the result.
measured() {
	local kib=$(($(all) - $3))
	echo "$PEER: $CLIENTS clients of $QUEUES queues are $1 after $2 s; both sides and the HCA have $((kib / 1024)) MiB more, $((kib / CLIENTS)) KiB a client, and $(threads) threads"
}

farblk_serve() {
	load /farblk/farblk.ko &&
		mkdir $C/ports/p && echo "$ADDR" >$C/ports/p/addr && echo 1 >$C/ports/p/enable &&
		mkdir $C/exports/e && farblk_$KIND &&
		mkdir "$C/exports/e/hosts/$(cat $C/host_name)" && echo rw >"$C/exports/e/hosts/$(cat $C/host_name)/access" && echo "$CLIENTS" >$C/exports/e/max_clients && echo 1 >$C/exports/e/enable
}
farblk_block() { echo block >$C/exports/e/kind && echo $BENCH_DISK >$C/exports/e/device_path; }
farblk_ram() { echo ram >$C/exports/e/kind && echo $((SIZE << 20)) >$C/exports/e/size; }
farblk_up() {
	local m=$C/maps/m$1
	mkdir "$m" "$m/paths/a" && echo "$ADDR" >"$m/paths/a/addr" && echo e >"$m/export" && echo "$QUEUES" >"$m/queues" && echo -1 >"$m/no_path_timeout_ms" &&
		echo 1 >"$m/paths/a/enable" && echo 1 >"$m/enable" || { echo "m$1: $(cat "$m/last_error")"; return 1; }
}
farblk_down() {
	local m=$C/maps/m$1
	echo 0 >"$m/enable" && echo 0 >"$m/paths/a/enable" && rmdir "$m/paths/a" "$m"
}
live() { grep -lx live $C/maps/*/state | wc -l; }
# How often paths came back, in all.
reconnects() { cat $C/maps/*/paths/a/reconnects | awk '{n += $1} END {print n}'; }
# ended NUMBER: I/Os of that map that have ended.
ended() { awk '{print $1 + $5}' "/sys/block/$(cat "$C/maps/m$1/device")/stat"; }

# All sessions end at once, and come back, with I/O on every second map: none may fail. To look for
# each disk in sysfs, as fio does for its statistics of disks, takes minutes with so many.
again() {
	local start n fio rc=0 jobs=() before sum last=$(((CLIENTS - 1) / 2 * 2))
	for ((n = 0; n < CLIENTS; n += 2)); do
		jobs+=(--name=m$n --filename="/dev/$(cat $C/maps/m$n/device)")
	done
	before=$(ended "$last")
	fio --disk_util=0 --direct=1 --ioengine=psync --rw=randrw --bs=4k --rate_iops=2,2 --time_based --runtime=$((CLIENTS / 25 + 20)) --thread --group_reporting --output=fio.out "${jobs[@]}" &
	fio=$!
	until [ "$(ended "$last")" -gt $((before + 4)) ]; do
		kill -0 $fio || return
		sleep 1
	done
	sum=$(reconnects)
	echo 0 >$C/ports/p/enable
	start=$(now)
	echo 1 >$C/ports/p/enable
	for ((n = 0; n < 600; n++)); do
		[ $(($(reconnects) - sum)) -lt "$CLIENTS" ] || [ "$(live)" != "$CLIENTS" ] || break
		sleep 1
	done
	echo "farblk: $(live) are back after $(since "$start") s; $(sed -n 's/^\(logins\|sent_away\|grants\) /\1 /p' /sys/kernel/debug/farblk/server/counters | tr '\n' ' ')"
	wait $fio || rc=$?
	[ $rc = 0 ] && grep -q 'err= 0' fio.out || { echo "farblk: I/O has failed, fio ends with $rc: $(head -n 5 fio.out)"; return 1; }
}

nvme_serve() { . ./peers/nvme.sh && BENCH_POLL="" && server_up && modprobe nvme-rdma; }
nvme_up() {
	local id
	id=$(cat /proc/sys/kernel/random/uuid)
	nvme connect -t rdma -a "$ADDR" -s $port -n $transport -i "$QUEUES" -Q 128 -q "nqn.2014-08.org.nvmexpress:uuid:$id" -I "$id" >/dev/null
}

modprobe brd rd_nr=1 rd_size=65536 && "${PEER}_serve" || exit
before=$(all)
start=$(now)
each "${PEER}_up" || exit
measured up "$(since "$start")" "$before"
case $PEER in
farblk)
	again || exit
	measured idle "$(since "$start")" "$before"
	start=$(now)
	each farblk_down || exit
	echo "farblk: all are gone after $(since "$start") s"
	;;
nvme)
	# It makes no more queues than there are CPUs.
	echo "nvme: each has $(($(cat /sys/class/nvme/nvme0/queue_count) - 1)) I/O queues"
	nvme disconnect-all
	;;
esac
