# SPDX-License-Identifier: GPL-2.0
# What the guests' scripts know of every peer: . peer.sh NAME; tools/bench/run says what a peer is.
# shellcheck shell=bash disable=SC1090

# What is exported, and what every server has below it.
BENCH_DISK=/dev/ram0
# What a second export of the same server has; a third one may take /dev/ram2.
BENCH_SECOND_DISK=/dev/ram1

disk_up() {
	local disk
	modprobe brd rd_nr=3 rd_size=$((BENCH_MIB * 1024)) || return
	# A page that was never written costs an allocation to write and no copy to read.
	for disk in /dev/ram[012]; do
		dd if=/dev/zero of="$disk" bs=1M count="$BENCH_MIB" oflag=direct status=none || return
	done
}

peer_up() { server_up && client_up "$ADDR"; }

peer_down() {
	local rc=0
	client_down || rc=1
	server_down || rc=1
	return $rc
}

. "/farblk/peers/$1.sh"
