#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Two paths over two networks: I/O takes both, and goes on when one of them breaks.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1
# Milliseconds that an I/O may take when a path broke; what is measured is in the output.
STALL=$((10000 * ${FARBLK_PATIENCE:-1}))

# packets NETWORK: that this host has sent there.
packets() { show "/sys/class/net/$(rxe_netdev "rxe$1")/statistics/tx_packets"; }

# spread POLICY: both networks have their share.
spread() {
	local a b
	start 0 1 -- "policy=$1"
	a=$(packets 0) b=$(packets 1)
	sleep 3
	a=$(($(packets 0) - a)) b=$(($(packets 1) - b))
	note "$a packets on network 0, $b on network 1"
	[ $((a * 10)) -gt "$b" ] && [ $((b * 10)) -gt "$a" ] || bad "I/O does not take both paths"
	finish
}
round_robin() { spread round-robin; }
min_inflight() { spread min-inflight; }

# goes_on FAULT UNDO: with both paths, I/O goes on while one is broken, and that one comes back.
goes_on() {
	start 0 1
	eval "$1"
	sleep "${WHILE:-6}"
	note "meanwhile: $(states)"
	is state "$(map_of state)" live
	resumes 10
	eval "$2"
	finish
	note "the slowest I/O took $(stamped slowest_ms) ms"
	[ "$(stamped slowest_ms)" -le $STALL ] || bad "an I/O took $(stamped slowest_ms) ms"
}

first_cut() { goes_on "net cut 0" "net pass 0"; }
second_cut() { goes_on "net cut 1" "net pass 1"; }
one_way() { goes_on "net cut 0 client server" "net pass 0"; }

link_down() { goes_on "must server_link down rxe1" "must server_link up rxe1; heal"; }
device_removed() { goes_on "must remote 'rxe_netdev rxe1 >/run/netdev; rdma link delete rxe1'" "must remote 'rxe_add \$(</run/netdev) rxe1'"; }
port_disabled() { goes_on "must remote 'store $C/ports/p0/enable 0'" "must remote 'store $C/ports/p0/enable 1'"; }

removed() {
	goes_on "must path_rm m a" "must path_add m a $FARBLK_SERVER"
}

both_cut() {
	start 0 1
	survives "net cut" "net pass"
}

# One after the other, so that there is always one.
in_turns() {
	local i
	start 0 1
	for ((i = 0; i < 6; i++)); do
		net cut $((i % 2))
		resumes "$AGAIN"
		net pass $((i % 2))
		all_live_in "$AGAIN"
	done
	finish
}

# Packets get lost for a while on one path, on both.
lossy() {
	start 0 1
	net loss=10 0
	sleep 10
	net loss=10
	sleep 5
	net pass
	resumes "$AGAIN"
	finish
}

damaged() {
	start 0 1
	net corrupt=5
	sleep 10
	net pass
	resumes "$AGAIN"
	finish
}

late() {
	start 0 1
	net delay=500 0
	sleep 8
	net duplicate=20
	sleep 5
	net pass
	resumes "$AGAIN"
	finish
}

server_dies() {
	start 0 1
	WHILE=1
	survives "must server_off" "must server_on; offer_again"
}

scenario round_robin "requests take both paths in turn"
scenario min_inflight "requests take both paths by load"
scenario first_cut "the first network is cut"
scenario second_cut "the second network is cut"
scenario one_way "packets get lost in one direction"
scenario link_down "the link of one path goes down and up"
scenario device_removed "the device of one path goes and comes"
scenario port_disabled "the port of one path is disabled and enabled"
scenario removed "a path is taken from the map and given back"
scenario both_cut "both networks are cut"
scenario in_turns "the networks are cut in turns"
scenario lossy "10 % of the packets get lost"
scenario damaged "5 % of the packets are damaged"
scenario late "packets are half a second late, or arrive twice"
scenario server_dies "the server dies and boots"
run_scenarios
