# SPDX-License-Identifier: GPL-2.0
# What the guests' scripts know of every peer: . peer.sh NAME; tools/bench/run says what a peer is.
# shellcheck shell=bash disable=SC1090

# What is exported, and what every server has below it.
BENCH_DISK=/dev/ram0
# What a second export of the same server has.
BENCH_SECOND_DISK=/dev/ram1

disk_up() {
	modprobe brd rd_nr=2 rd_size=$((BENCH_MIB * 1024)) &&
		# A page that was never written costs an allocation to write and no copy to read.
		dd if=/dev/zero of=$BENCH_DISK bs=1M count="$BENCH_MIB" oflag=direct status=none &&
		dd if=/dev/zero of=$BENCH_SECOND_DISK bs=1M count="$BENCH_MIB" oflag=direct status=none
}

peer_up() { server_up && client_up "$ADDR"; }

peer_down() {
	local rc=0
	client_down || rc=1
	server_down || rc=1
	return $rc
}

# peer_measure DEVICE RW BYTES DEPTH MILLISECONDS COMPLETION: prints the result as JSON.
peer_measure() {
	local poll=()
	[ "$6" = irq ] || poll=(--hipri --cpus_allowed=1)
	fio --name=bench --filename="$1" --rw="$2" --bs="$3" --iodepth="$4" --runtime="${5}ms" --time_based --ioengine=io_uring --direct=1 \
		--thread --norandommap --scramble_buffers=0 --disk_util=0 --lat_percentiles=1 --percentile_list=50 --output-format=json "${poll[@]}"
}

. "/farblk/peers/$1.sh"
