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

# raw_load N|Y: Y if the poster polls.
raw_load() { modprobe rdma_cm && insmod rawverbs.ko addr="$ADDR" polled="$1"; }

peer_up() { raw_load N && echo none; }

peer_down() { rmmod rawverbs; }

peer_measure() {
	local run=/sys/kernel/debug/rawverbs/run cpu=() polled=N
	[ "$5" = irq ] || polled=Y cpu=(taskset -c 1)
	[ "$(cat /sys/module/rawverbs/parameters/polled)" = $polled ] || { rmmod rawverbs && raw_load $polled; } || return
	"${cpu[@]}" bash -c 'echo "$1" >"$2"' bash "${1#rand} $2 $3 $4" $run && cat $run
}
