#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# farblk demo: it makes an RDMA device, an export and a map on one host, and leaves nothing of them,
# however it ends; what others have is not touched.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cli.sh"
DEMO="/sys/class/net/farblkdemo /sys/class/infiniband/farblkdemo $C/ports/farblk-demo $C/exports/farblk-demo $C/maps/farblk-demo"

# none_left: nothing of the demo is there.
none_left() {
	local f
	for f in $DEMO; do [ ! -e "$f" ] || bad "$f was left"; done
	is "what ping left" "$(ls "$C/discover")" ""
	is "the files in /etc/farblk" "$(kept_files)" "$KEPT"
}
# kept_files: those in /etc/farblk, without what the tool itself keeps: the identity, registrations.
kept_files() { find /etc/farblk -type f ! -name host_id ! -name registrations -exec cksum {} + 2>/dev/null | sort; }
# start: not on a host that is another's client, and with an export and a map of others.
start() {
	not_local
	needs jq rdma ip
	needs_own_module dummy rdma_rxe
	must serve e 8M
	must map m e heartbeat_ms=10000
	MINE=$DEV
	KEPT=$(kept_files)
	random /run/data 1
	must direct_write /run/data "$MINE"
}
# untouched: they are as they were.
untouched() {
	wait_for 60 grep -qx live "$C/maps/m/state" || bad "the map of others is $(show "$C/maps/m/state")"
	is "its reconnects" "$(show "$C/maps/m/paths/a/reconnects")" 0
	must direct_read "$MINE" /run/back count=1
	must cmp /run/data /run/back
	must unmap m
}

whole() {
	local line
	start
	here demo --ram 4M --time 1s
	note "$(grep -v '^#' /run/stdout)"
	grep -q '^# rdma link add farblkdemo type rxe netdev farblkdemo$' /run/stdout || bad "no commands: $(cat /run/stdout)"
	for line in "100 round trips" "100 reads of 4.0 KiB"; do
		grep -q "^$line  min " /run/stdout || bad "no ping: $(cat /run/stdout)"
	done
	grep -q '^nothing of the demo is left$' /run/stdout || bad "no end: $(cat /run/stdout)"
	none_left
	here -j demo --ram 2M --time 500ms
	is "lines of JSON" "$(wc -l </run/stdout)" 1
	is "sizes" "$(json '.schema, .size_bytes, (.small_reads > 0), (.write_bytes_per_s > 0)' | xargs)" "farblk.demo/1 2097152 true true"
	none_left
	untouched
}

# in_background: a demo that runs, as $pid. What the last one has printed is not there any more when
# this returns.
in_background() {
	: >/run/stdout
	"$FARBLK" demo --ram 2M --time 1h >/run/stdout 2>/run/stderr &
	pid=$!
}
# by_signal SIGNAL REGEX: once it has printed that.
by_signal() {
	local pid rc=0
	in_background
	wait_for 60 grep -q "$2" /run/stdout || bad "no '$2': $(cat /run/stdout /run/stderr)"
	kill -s "$1" $pid
	wait_for 30 ended $pid || die "it does not end by SIG$1"
	wait $pid || rc=$?
	is "exit code by SIG$1 at '$2'" $rc 0
	none_left
}
signals() {
	start
	set -m
	by_signal INT "ip link add"
	by_signal TERM "export create"
	by_signal INT "^read back"
	set +m
	untouched
}

# Who uses the disk of the demo keeps it, and is told what to run then. Of two demos at once one
# runs.
in_use() {
	local pid rc=0
	start
	in_background
	wait_for 60 grep -q "^read back" /run/stdout || bad "it does not read: $(cat /run/stderr)"
	"$FARBLK" demo >/dev/null 2>&1 && bad "a second demo runs"
	exec 5<"/dev/$(show "$C/maps/farblk-demo/device")"
	kill -INT $pid
	wait_for 30 ended $pid || die "it does not end"
	wait $pid || rc=$?
	is "exit code" $rc 4
	sed -n "s|^  hint: ||p" /run/stderr | sed "s|^farblk|$FARBLK|" >/run/hints
	is "hints" "$(wc -l </run/hints)" 5
	[ -e "$C/exports/farblk-demo" ] || bad "the export of a disk in use is gone"
	exec 5<&-
	must bash -e /run/hints >/dev/null
	none_left
	untouched
}

# What has the names of the demo is refused, and stays; so does what a killed one has left, until
# its hints are run.
names() {
	local pid
	start
	must ip link add farblkdemo type dummy
	exits 1 "$FARBLK" demo
	grep -q "F0103.*/sys/class/net/farblkdemo exists already" <(tr -d '\n' </run/stderr) || bad "a network device: $(cat /run/stderr)"
	[ -e /sys/class/net/farblkdemo ] || bad "the network device of others is gone"
	must ip link del farblkdemo
	must ip addr add 198.18.74.20/32 dev lo
	exits 1 "$FARBLK" demo
	grep -q "has the address 198.18.74.20 already" /run/stderr || bad "an address: $(cat /run/stderr)"
	must ip addr del 198.18.74.20/32 dev lo
	none_left
	in_background
	wait_for 60 grep -q "^read back" /run/stdout || bad "it does not read: $(cat /run/stderr)"
	kill -KILL $pid
	wait $pid 2>/dev/null
	exits 1 "$FARBLK" demo
	sed -n "s|^  hint: \(farblk\)|\1|p; s/^  hint: \([ir]\)/\1/p" /run/stderr | sed "s|^farblk|$FARBLK|" >/run/hints
	is "hints" "$(wc -l </run/hints)" 5
	must bash -e /run/hints >/dev/null
	none_left
	# A step that fails in the midst of it.
	exits 1 "$FARBLK" demo --ram 1P
	none_left
	untouched
}

scenario whole "the demo runs, measures, and leaves nothing"
scenario signals "a signal at any step leaves nothing"
scenario in_use "a disk of the demo that is in use stays, and its hints remove it"
scenario names "what has the same names stays, and a killed demo is removed by its hints"
run_scenarios
