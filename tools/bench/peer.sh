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

. "/farblk/peers/$1.sh"
