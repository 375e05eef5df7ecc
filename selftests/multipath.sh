#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Two paths over two networks: I/O takes both, and goes on when one of them breaks.
# FARBLK_KINDS=KIND: exports of that kind only.
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

# Each path that takes requests of a batch rings one doorbell for them.
batches() {
	local counters=$D/client/m/counters before rung
	agent_only
	needs fio
	offer 0 1
	must mkdir "$C/maps/m"
	must settings "$C/maps/m" export=e queues=1
	must path_add m a "$(address "$SERVER" 0)"
	must path_add m b "$(address "$SERVER" 1)"
	must map_on m
	all_live_in "$AGAIN"
	before=$(counter "$counters" doorbells)
	must fio --name=batches --filename="$DEV" --direct=1 --ioengine=libaio --rw=randread --bs=4k --io_size=2g --number_ios=1600 \
		--iodepth=16 --iodepth_batch_submit=16 --iodepth_batch_complete_min=16 --output=/run/fio.out
	rung=$(($(counter "$counters" doorbells) - before))
	note "$rung doorbells for 100 batches of 16"
	[ $rung -le 400 ] || bad "requests of a batch ring doorbells of their own"
	must unmap m
}

# goes_on FAULT UNDO [LOST]: with both paths, I/O goes on while one is broken, and that one comes
# back; LOST is how many are lost.
goes_on() {
	local before
	start 0 1
	before=$(reconnects)
	eval "$1"
	sleep "${WHILE:-6}"
	note "meanwhile: $(states)"
	is state "$(map_of state)" live
	resumes 10
	eval "$2"
	all_live_in "$AGAIN"
	[ "$(reconnects)" -ge $((before + ${3:-1})) ] || bad "no path was lost"
	finish
	note "the slowest I/O took $(stamped slowest_ms) ms"
	[ "$(stamped slowest_ms)" -le $STALL ] || bad "an I/O took $(stamped slowest_ms) ms"
}

first_cut() { goes_on "must net cut 0" "must net pass 0"; }
second_cut() { goes_on "must net cut 1" "must net pass 1"; }
one_way() { goes_on "must net cut 0 client server" "must net pass 0"; }

link_down() { goes_on "must server_link down rxe1" "must server_link up rxe1; heal"; }
device_removed() { goes_on "must remote 'rxe_netdev rxe1 >/run/netdev; rdma link delete rxe1'" "must remote 'rxe_add \$(</run/netdev) rxe1'"; }
port_disabled() { goes_on "must remote 'store $C/ports/p0/enable 0'" "must remote 'store $C/ports/p0/enable 1'"; }

removed() {
	goes_on "must path_rm m a" "must path_add m a $FARBLK_SERVER" 0
}

both_cut() {
	start 0 1
	survives "must net cut" "must net pass"
}

# One after the other, so that there is always one.
in_turns() {
	local i
	start 0 1
	for ((i = 0; i < 6; i++)); do
		must net cut $((i % 2))
		resumes "$AGAIN"
		must net pass $((i % 2))
		all_live_in "$AGAIN"
	done
	finish
}

# Packets get lost for a while on one path, on both.
lossy() {
	start 0 1
	must net loss=10 0
	sleep 10
	must net loss=10
	sleep 5
	must net pass
	resumes "$AGAIN"
	finish
}

damaged() {
	start 0 1
	must net corrupt=5
	sleep 10
	must net pass
	resumes "$AGAIN"
	finish
}

late() {
	start 0 1
	must net delay=500 0
	sleep 8
	must net duplicate=20
	sleep 5
	must net pass
	resumes "$AGAIN"
	finish
}

# --- a path that leads to another server ----------------------------------------------------------

# It has an export of that name, too: here the other server is the client itself. A path there may
# be refused, or find another export, or even one with the same UUID; whatever it is, the map goes
# on. elsewhere EXPORT-LINE [REGEX]: path b leads there, says what is wrong, and goes; I/O goes on.
elsewhere() {
	local own
	start 0
	own=$(address "$ROLE" 0)
	must port_add other "$own"
	must eval "$1"
	must path_add m b "$own"
	wait_for 30 path_says b "$2" || bad "no '$2': $(states)"
	note "$(states)"
	resumes 10
	# Its later attempts do no harm either.
	sleep 3
	is state "$(map_of state)" live
	resumes 10
	must path_rm m b
	must store "$C/exports/e/enable" 0
	finish
}
path_says() { [[ $(path_of "$1" last_error) =~ $2 ]]; }
refused_elsewhere() { elsewhere "export_ram e ${SIZE}M allow_any_host=0" '^EACCES '; }
another_export() { elsewhere "export_ram e ${SIZE}M" '^ESTALE .*(server|UUID)'; }
same_uuid_elsewhere() {
	KIND=ram
	elsewhere "export_ram e ${SIZE}M uuid=${UUID[server]}" '^ESTALE .*server'
}

# I/O fails at once if no path is up, and only then.
no_patience() {
	start 0 1 -- no_path_timeout_ms=0
	must net cut 0
	resumes 10
	must net pass 0
	all_live_in "$AGAIN"
	must net cut 1
	resumes 10
	must net pass 1
	finish
}

server_dies() { WHILE=1; forgets "0 1" "must server_off" "must server_on; offer_again"; }

scenario round_robin "requests take both paths in turn"
scenario min_inflight "requests take both paths by load"
both batches "a batch rings one doorbell for each path"
both first_cut "the first network is cut"
scenario second_cut "the second network is cut"
both one_way "packets get lost in one direction"
scenario link_down "the link of one path goes down and up"
both device_removed "the device of one path goes and comes"
scenario port_disabled "the port of one path is disabled and enabled"
both removed "a path is taken from the map and given back"
both both_cut "both networks are cut"
scenario in_turns "the networks are cut in turns"
both lossy "10 % of the packets get lost"
both damaged "5 % of the packets are damaged"
both late "packets are half a second late, or arrive twice"
both refused_elsewhere "a path leads to another server, which refuses"
both another_export "a path leads to another server with another export"
scenario same_uuid_elsewhere "a path leads to another server with an export of the same UUID"
both no_patience "no_path_timeout_ms is 0, and one path stays"
both server_dies "the server dies and boots"
run_scenarios
