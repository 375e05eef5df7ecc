#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Who makes, sets and removes configfs objects over and over, and at the same time. One host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE

hundred_times() {
	local i free slabs times=100
	! is_short || times=30
	for ((i = 0; i < times + 10; i++)); do
		[ $i != 10 ] || { free=$(memory); slabs=$(slab); }
		must mkdir "$C/ports/p" "$C/exports/e" "$C/exports/e/hosts/h" "$C/maps/m" "$C/maps/m/paths/a" "$C/discover/d"
		must rmdir "$C/ports/p" "$C/exports/e/hosts/h" "$C/exports/e" "$C/maps/m/paths/a" "$C/maps/m" "$C/discover/d"
	done
	[ $((free - $(memory))) -lt 2048 ] || wrong "available memory fell from $free to $(memory) KiB"
	[ $(($(slab) - slabs)) -lt 512 ] || wrong "slabs grew from $slabs to $(slab) KiB"
}

# Two writers and a remover: whatever wins, nothing breaks and the end is clean.
races() {
	local i pids=() rounds=40
	! is_short || rounds=16
	must port_add p "$FARBLK_SERVER"
	for i in 1 2; do
		(for ((n = 1; n <= rounds; n++)); do
			mkdir "$C/exports/e"
			settings "$C/exports/e" size=8M allow_any_host=1
			store "$C/exports/e/enable" 1
			for f in "$C/exports/e/"*; do : "$(<"$f")"; done
			mkdir "$C/maps/m" "$C/maps/m/paths/a"
			settings "$C/maps/m/paths/a" "addr=$FARBLK_SERVER" enable=1
			[ $((n % 8)) != 0 ] || settings "$C/maps/m" export=e enable=1
			for f in "$C/maps/m/"*; do : "$(<"$f")"; done
			store "$C/maps/m/enable" force
			map_rm m
			store "$C/exports/e/enable" 0
			rmdir "$C/exports/e"
		done) >/dev/null 2>&1 &
		pids+=($!)
	done
	wait "${pids[@]}"
	clean
	is "what is left" "$(ls "$C/ports" "$C/exports" "$C/maps" | grep -v : | tr -d '\n')" ""
}

# A path comes and goes while its map does: nobody waits for ever, and none is left enabled or
# taken.
path_races() {
	local n pid p=$C/maps/m/paths/b
	must port_add p "$FARBLK_SERVER"
	must export_ram e 8M
	must map_make m e
	must mkdir "$p"
	must store "$p/addr" "$FARBLK_SERVER"
	touch /run/path-races
	(while [ -e /run/path-races ]; do
		store "$p/enable" 1
		store "$p/enable" 0
	done) >/dev/null 2>&1 &
	pid=$!
	for n in {1..30}; do
		store "$C/maps/m/enable" 1
		store "$C/maps/m/enable" 0
	done 2>/dev/null
	rm /run/path-races
	wait_for 30 ended $pid || bad "a path's enable hangs"
	must store "$C/maps/m/enable" 0
	must store "$p/enable" 0
	must rmdir "$p"
	for n in {1..7}; do must mkdir "$p$n" && must settings "$p$n" "addr=$FARBLK_SERVER" enable=1; done
}

scenario hundred_times "100 times mkdir and rmdir of everything"
scenario races "two writers race over the same objects"
scenario path_races "a path comes and goes while its map does"
run_scenarios
