# SPDX-License-Identifier: GPL-2.0
# A ram export of farblk.
# shellcheck shell=bash

farblk=/sys/kernel/config/farblk
# Of the export and of the map.
object=ram

peer_files() { echo "$SRC/rust/farblk.ko"; }

# describe EXPORT
describe() { echo ram >"$1/kind" && echo "${BENCH_MIB}M" >"$1/size"; }

# protect MAP: gives it the protection of the export.
protect() { :; }

# enable OBJECT: or says why not.
enable() { echo 1 >"$1/enable" || { cat "$1/last_error" >&2; return 1; }; }

# farblk_load: once for all kinds of exports.
farblk_load() { [ -d $farblk ] || insmod farblk.ko; }

server_up() {
	local port=$farblk/ports/bench export=$farblk/exports/$object
	farblk_load || return
	[ -d $port ] || { mkdir $port && echo "$ADDR" >$port/addr && enable $port; } || return
	mkdir "$export" && describe "$export" && echo 1 >"$export/allow_any_host" && enable "$export"
}

server_down() {
	echo 0 >"$farblk/exports/$object/enable"
	find "$farblk/exports/$object/hosts" -mindepth 1 -maxdepth 1 -type d -exec rmdir {} +
	rmdir "$farblk/exports/$object" || return
	[ -z "$(ls $farblk/exports)" ] || return 0
	echo 0 >$farblk/ports/bench/enable
	rmdir $farblk/ports/bench
}

client_up() {
	local map=$farblk/maps/$object
	farblk_load && mkdir "$map" "$map/paths/a" || return
	echo "$1" >"$map/paths/a/addr"
	echo 1 >"$map/paths/a/enable"
	echo rw >"$map/access"
	protect "$map" || return
	if [ -n "$BENCH_POLL" ] && [ -e "$map/poll_queues" ]; then echo "$BENCH_POLL" >"$map/poll_queues" || return; fi
	enable "$map" && echo "/dev/$(cat "$map/device")"
}

client_down() {
	local map=$farblk/maps/$object
	echo 0 >"$map/enable"
	echo 0 >"$map/paths/a/enable"
	rmdir "$map/paths/a" "$map"
}
