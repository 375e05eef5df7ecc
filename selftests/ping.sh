#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# farblk ping: round trips to a server, without a login, and against servers that are away, silent
# or hostile; reads and writes of maps. Nobody's place is touched, and no data. What a stranger may
# ask of a server is in hostile.sh.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cli.sh"
# The hostile server's address.
HOSTILE=10.9.0.77

nothing_left() { is "what ping left" "$(ls "$C/discover")" ""; }
# a_line COUNT WHAT: the table says so of them.
a_line() { grep -qE "^$1 $2  min [0-9.]+ [um]s  p50 [0-9.]+ [um]s  p99 [0-9.]+ [um]s  max " /run/stdout || bad "no $2: $(cat /run/stdout)"; }
# in_order KIND: the times of that kind are.
in_order() { json ".$1 | .min_ns > 0 and .min_ns <= .p50_ns and .p50_ns <= .p99_ns and .p99_ns <= .max_ns" >/dev/null; }

# A host without an export, and with one of RAM whose only place another map has.
round_trips() {
	needs jq
	not_local
	must remote "port_add p $FARBLK_SERVER"
	exits 0 "$FARBLK" ping "$FARBLK_SERVER"
	a_line 100 "round trips"
	[ "$(wc -l </run/stdout)" -ge 2 ] || bad "no histogram: $(cat /run/stdout)"
	must remote "export_ram e 8M max_clients=1"
	must map m e heartbeat_ms=10000
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER" -c 300 -i 1ms
	is "round trips" "$(json '.round_trips.count, .read, .write, .complete' | xargs)" "300 null null true"
	is "round trips in the histogram" "$(json '[.round_trips.histogram[].count] | add')" 300
	note "$(json '.round_trips | "p50 \(.p50_ns) p99 \(.p99_ns) ns"')"
	in_order round_trips
	is "the state of the map that has the export" "$(show "$C/maps/m/state")" live
	must direct_read "$DEV" /dev/null count=1
	is "maps with a place" "$(remote "cat $C/exports/e/clients $C/exports/e/clients_away" | xargs)" "1 0"
	is "reconnects of the map" "$(show "$C/maps/m/paths/a/reconnects")" 0
	must unmap m
	# Nobody has to admit this host.
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/allow_any_host 0 && store $C/exports/e/enable 1"
	exits 0 "$FARBLK" ping "$FARBLK_SERVER" -c 1 -i 0
	exits 0 "$FARBLK" ping "$FARBLK_SERVER" -c 3 -i 300ms
	is "round trips that were shown" "$(grep -c '[0-9] [um]s$' /run/stderr)" 3
	exits 2 "$FARBLK" ping "$FARBLK_SERVER/e"
	grep -q "hint: farblk map .*/e" /run/stderr || bad "an export: $(cat /run/stderr)"
	exits 0 "$FARBLK" --dry-run ping "$FARBLK_SERVER" -c 3
	is "round trips of what a dry run printed" "$(bash -e /run/stdout | grep -c '^[0-9]*$')" 3
	nothing_left
}

# measured: reads and writes of DEV, by each of its names. All data are as before.
measured() {
	local name before
	before=$(cksum <"$DEV")
	exits 0 "$FARBLK" ping m -c 50 -i 1ms
	a_line 50 "reads of 4.0 KiB"
	! grep -q writes /run/stdout || bad "writes: $(cat /run/stdout)"
	for name in "$DEV" "${DEV#/dev/}"; do
		exits 0 "$FARBLK" -j ping "$name" -c 50 -i 0 --write
		is "what was measured" "$(json '.map, .device, .addr, .round_trips, .read.count, .read.size, .write.count, .write.size, .complete' | xargs)" \
			"m $DEV null null 50 4096 50 4096 true"
		in_order read
		in_order write
	done
	note "$(json '"read p50 \(.read.p50_ns) write p50 \(.write.p50_ns) ns"')"
	exits 0 "$FARBLK" -j ping m -c 5 -i 0 --write --size 1M
	is "sizes" "$(json '.read.size, .write.size, .write.count' | xargs)" "1048576 1048576 5"
	exits 0 "$FARBLK" --dry-run ping m --write -c 3
	bash -e /run/stdout 2>/run/stderr || bad "what a dry run printed: $(cat /run/stdout /run/stderr)"
	is "the data of the disk" "$(cksum <"$DEV")" "$before"
}

# An export of RAM, and one of a block device with blocks of 512 bytes.
maps() {
	needs jq
	not_local
	random /run/data 8
	must serve e 8M
	must map m e
	must direct_write /run/data "$DEV"
	measured
	must unmap m
	needs_module null_blk
	back "null_disk fbp 8 blocksize=512"
	must serve_block b "$BACK"
	must map m b
	must direct_write /run/data "$DEV"
	measured
	exits 0 "$FARBLK" -j ping m -c 5 --size 512 --write
	is "sizes" "$(json '.read.size, .write.size' | xargs)" "512 512"
	exits 2 "$FARBLK" ping m --size 1000
	exits 2 "$FARBLK" ping m --source "$FARBLK_SERVER"
	must unmap m
	exits 3 "$FARBLK" ping "$DEV"
	grep -q F0102 /run/stderr || bad "a map that is not there: $(cat /run/stderr)"
}

# A disk that somebody uses, or that is read-only, is read and not written; a stale one neither.
not_written() {
	local number node loop
	needs jq
	not_local
	must serve e 16M max_clients=2
	must map m e
	must mkfs.ext4 -q "$DEV"
	must mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	exits 4 "$FARBLK" ping m --write
	grep -q "F0107.*m is in use and was not written to" /run/stderr || bad "mounted: $(cat /run/stderr)"
	grep -q "hint: umount /run/mnt" /run/stderr || bad "mounted: $(cat /run/stderr)"
	exits 0 "$FARBLK" ping m -c 5
	must umount /run/mnt
	must mkswap -q "$DEV"
	must swapon "$DEV"
	exits 4 "$FARBLK" ping m --write
	grep -q "hint: swapoff $DEV" /run/stderr || bad "swap: $(cat /run/stderr)"
	must swapoff "$DEV"
	# A process that has it open, as a virtual machine has its disk.
	sleep 1000 3<>"$DEV" &
	exits 4 "$FARBLK" ping m --write
	grep -q "sleep($!)" /run/stderr || bad "open: $(cat /run/stderr)"
	kill $! && wait $! 2>/dev/null
	# A loop device does not claim it, by whatever name.
	number=$(show "/sys/class/block/${DEV#/dev/}/dev")
	at_exit "rm -f /dev/xvdz"
	must mknod /dev/xvdz b "${number%:*}" "${number#*:}"
	for node in "$DEV" /dev/xvdz; do
		modprobe -q loop
		loop=$(losetup --find --show "$node") || die "no loop device over $node"
		at_exit "losetup --detach $loop 2>/dev/null"
		exits 4 "$FARBLK" ping m --write
		grep -q "used by: ${loop#/dev/}" /run/stderr || bad "a loop device over $node: $(cat /run/stderr)"
		must losetup --detach "$loop"
	done
	# A process that has it open by another name, as in a container, and by one that is gone.
	sleep 1000 3<>/dev/xvdz &
	exits 4 "$FARBLK" ping m --write
	grep -q "sleep($!)" /run/stderr || bad "open by another name: $(cat /run/stderr)"
	must rm /dev/xvdz
	exits 4 "$FARBLK" ping m --write
	grep -q "sleep($!)" /run/stderr || bad "open by a name that is gone: $(cat /run/stderr)"
	kill $! && wait $! 2>/dev/null
	exits 0 "$FARBLK" ping m --write -c 5
	# Another disk with the same data.
	must map n e
	exits 4 "$FARBLK" ping m --write
	grep -q "F0104.*map n has the same export" <(tr -d '\n' </run/stderr) ||
		bad "two maps: $(cat /run/stderr)"
	grep -q "hint: farblk unmap n" /run/stderr || bad "two maps: $(cat /run/stderr)"
	exits 0 "$FARBLK" ping m -c 5
	must unmap n
	exits 0 "$FARBLK" ping m --write -c 5
	must unmap m
	must map m e access=ro
	exits 6 "$FARBLK" ping m --write
	grep -q F0113 /run/stderr || bad "read-only: $(cat /run/stderr)"
	exits 0 "$FARBLK" ping m -c 5
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/enable 1"
	wait_for 30 is_stale || die "the map is $(show "$C/maps/m/state")"
	exits 9 "$FARBLK" ping m
	grep -q "hint: farblk remap m" /run/stderr || bad "stale: $(cat /run/stderr)"
	must unmap m
}
is_stale() { [ "$(show "$C/maps/m/state")" = stale ]; }

# The map of one that lost its paths is away: ping neither takes its place nor ends its lease.
map_that_is_away() {
	not_local
	needs jq
	must serve e 8M max_clients=1
	must map m e heartbeat_ms=500 no_path_timeout_ms=-1
	must remote "store $C/ports/p/enable 0"
	wait_for 30 is_reconnecting || die "the map is $(show "$C/maps/m/state")"
	must remote "port_add q $FARBLK_SERVER:7421"
	exits 0 "$FARBLK" -j ping "$FARBLK_SERVER:7421" -c 5
	is "round trips" "$(json .round_trips.count)" 5
	exits 5 "$FARBLK" ping m
	grep -q "F0216.*map m is reconnecting" <(tr -d '\n' </run/stderr) || bad "a map that is away: $(cat /run/stderr)"
	is "maps that are away" "$(remote "cat $C/exports/e/clients $C/exports/e/clients_away" | xargs)" "0 1"
	must remote "store $C/ports/p/enable 1"
	wait_for 20 is_live || bad "the map does not come back: $(show "$C/maps/m/last_error")"
	must direct_read "$DEV" /dev/null count=1
	must unmap m
}
is_reconnecting() { [ "$(show "$C/maps/m/state")" = reconnecting ]; }
is_live() { [ "$(show "$C/maps/m/state")" = live ]; }

# A closed port; an address that nobody has; a wrong source; a port that goes away meanwhile.
not_there() {
	not_local
	needs jq
	within 6 exits 5 "$FARBLK" ping "$FARBLK_SERVER"
	grep -q "F0203.*nobody listens on" <(tr -d '\n' </run/stderr) || bad "a closed port: $(cat /run/stderr)"
	within 6 exits 5 "$FARBLK" ping 203.0.113.1
	exits 1 "$FARBLK" ping "$FARBLK_SERVER" --source 192.0.2.1
	grep -q F0214 /run/stderr || bad "a wrong source: $(cat /run/stderr)"
	must remote "port_add p $FARBLK_SERVER"
	"$FARBLK" -j ping "$FARBLK_SERVER" -c 1000 -i 20ms >/run/stdout 2>/run/stderr &
	local pid=$! rc=0
	wait_for 20 made_one || die "ping does not begin: $(cat /run/stderr)"
	must remote "store $C/ports/p/enable 0"
	wait_for 30 ended $pid || die "ping goes on without its server"
	wait $pid || rc=$?
	is "exit code" $rc 5
	is "complete" "$(jq .complete </run/stdout)" false
	json '.round_trips.count > 10' >/dev/null
	nothing_left
}

# interrupted SIGNAL KIND TARGET OPTION...: it sums up, and leaves nothing behind.
interrupted() {
	"$FARBLK" -j ping "${@:3}" -c 100000 >/run/stdout 2>/run/stderr &
	local pid=$! rc=0
	wait_for 20 begun $pid || die "ping does not begin: $(cat /run/stderr)"
	sleep 1
	kill -s "$1" $pid
	within 8 wait_for 10 ended $pid || die "ping does not end by SIG$1"
	wait $pid || rc=$?
	is "exit code by SIG$1" $rc 0
	is "complete" "$(jq .complete </run/stdout)" false
	json ".$2.count > 0 and .$2.count < 100000" >/dev/null
	nothing_left
}
# made_one: a ping has measured something. begun PID: the same, or it has opened the disk.
made_one() { grep -qs . "$C"/discover/*/rtt_ns; }
begun() { made_one || [ -n "$(find "/proc/$1/fd" -lname "$DEV" 2>/dev/null)" ]; }
signals() {
	not_local
	needs jq
	must serve e 8M
	must map m e
	# A shell gives its background no SIGINT.
	trap - INT
	set -m
	interrupted INT round_trips "$FARBLK_SERVER"
	interrupted TERM round_trips "$FARBLK_SERVER" -i 1s
	interrupted INT read m
	interrupted HUP write m --write -i 0
	must unmap m
	# What a killed one has left goes with the next.
	"$FARBLK" ping "$FARBLK_SERVER" -c 100000 >/dev/null 2>&1 &
	wait_for 20 made_one
	kill -KILL $!
	wait $! 2>/dev/null
	exits 0 "$FARBLK" ping "$FARBLK_SERVER" -c 1
	set +m
	nothing_left
}

# A server that is off, and one that is cut off, end it in time.
server_away() {
	agent_only
	must remote "port_add p $FARBLK_SERVER"
	server_link down
	within 9 exits 5 "$FARBLK" ping "$FARBLK_SERVER"
	server_link up
	rxe_heal
	remote rxe_heal
	wait_for 30 "$FARBLK" ping "$FARBLK_SERVER" -c 1 >/dev/null 2>&1 || bad "the server is not there again"
	nothing_left
}

# Servers that answer with garbage, too much, too late or not at all.
hostile_answers() {
	local rc mapped
	unset FARBLK_AGENT FARBLK_REMOTE
	not_local
	needs python3
	needs_user_rdma
	ip addr replace "$HOSTILE/24" dev "$(rxe_netdev)" || die "no address for the hostile server"
	# shellcheck disable=SC2046
	mapped=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' ${HOSTILE//./ })
	wait_for 20 grep -qsx "$mapped" /sys/class/infiniband/rxe0/ports/1/gids/*
	python3 "$HERE/hostile_server.py" "$HOSTILE" "$HOSTILE" ping 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	ip addr del "$HOSTILE/24" dev "$(rxe_netdev)"
	[ "$rc" != 4 ] || skip "user space has no RDMA"
	[ "$rc" = 0 ] || bad "hostile_server.py ping ends with $rc"
	nothing_left
}

scenario round_trips "without a login, of a server whose only export is taken"
scenario maps "reads and writes of an export of RAM and of a block device; the data stay"
scenario not_written "a disk that somebody uses, or that is read-only, is not written; a stale one not read"
scenario map_that_is_away "a map that is away keeps its place, and comes back"
scenario not_there "a closed port, no host, a wrong source, and a port that goes away"
scenario signals "a signal ends it with what was measured, and nothing is left"
scenario server_away "a server that is cut off is given up in time"
is_short || scenario hostile_answers "garbage, silence and slowness end it with a reason"
run_scenarios
