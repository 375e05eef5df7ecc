# SPDX-License-Identifier: GPL-2.0
# A ram export of farblk.
# shellcheck shell=bash

farblk=/sys/kernel/config/farblk

peer_files() { echo "$SRC/rust/farblk.ko"; }

peer_up() {
	insmod farblk.ko || return
	mkdir $farblk/ports/bench $farblk/exports/bench $farblk/maps/bench $farblk/maps/bench/paths/a || return
	echo "$ADDR" >$farblk/ports/bench/addr
	echo 1 >$farblk/ports/bench/enable || return
	echo ram >$farblk/exports/bench/kind
	echo "${BENCH_MIB}M" >$farblk/exports/bench/size
	echo 1 >$farblk/exports/bench/allow_any_host
	echo 1 >$farblk/exports/bench/enable || return
	echo "$ADDR" >$farblk/maps/bench/paths/a/addr
	echo 1 >$farblk/maps/bench/paths/a/enable
	echo rw >$farblk/maps/bench/access
	if ! echo 1 >$farblk/maps/bench/enable; then
		cat $farblk/maps/bench/last_error >&2
		return 1
	fi
	echo "/dev/$(cat $farblk/maps/bench/device)"
}

peer_down() {
	echo 0 >$farblk/maps/bench/enable
	echo 0 >$farblk/maps/bench/paths/a/enable
	echo 0 >$farblk/exports/bench/enable
	echo 0 >$farblk/ports/bench/enable
	rmdir $farblk/maps/bench/paths/a $farblk/maps/bench $farblk/exports/bench $farblk/ports/bench
	rmmod farblk
}
