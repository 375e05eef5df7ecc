# SPDX-License-Identifier: GPL-2.0
# RDMA READ and WRITE posted in the kernel (tools/bench/rawverbs): not a block device, so fio is not
# asked.
# shellcheck shell=bash

peer_files() {
	local to=$CACHE/bench/rawverbs
	mkdir -p "$to"
	kbuild M="$SRC/tools/bench/rawverbs" MO="$to" modules >&2 || return
	echo "$to/rawverbs.ko"
}

peer_up() { modprobe rdma_cm && insmod rawverbs.ko addr="$ADDR" || return; echo none; }

peer_down() { rmmod rawverbs; }

peer_measure() {
	echo "${2#rand} $3 $4 $5" >/sys/kernel/debug/rawverbs/run && cat /sys/kernel/debug/rawverbs/run
}
