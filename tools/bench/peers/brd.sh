# SPDX-License-Identifier: GPL-2.0
# The block layer and fio alone, and what nvme's target stands on.
# shellcheck shell=bash

peer_up() {
	modprobe brd rd_nr=1 rd_size=$((BENCH_MIB * 1024)) || return
	# A page that was never written costs an allocation to write and no copy to read.
	dd if=/dev/zero of=/dev/ram0 bs=1M count="$BENCH_MIB" oflag=direct status=none || return
	echo /dev/ram0
}

peer_down() { modprobe -r brd; }
