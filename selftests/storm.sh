#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Faults of all kinds, one after the other, at random: FARBLK_FAULTS of them, drawn by FARBLK_SEED;
# with memory a quarter of that. No write that was complete gets lost, nothing old comes back, no
# I/O fails or hangs. FARBLK_KINDS=KIND: exports of that kind only.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1
FAULTS=${FARBLK_FAULTS:-60}
SEED=${FARBLK_SEED:-$((SRANDOM % 32768))}

# draw N: DRAWN is one of 0 to N - 1. (A subshell would always draw the same.)
draw() { DRAWN=$((RANDOM % $1)); }
# one_network: NETWORK is 0, 1, or all. one_path: it is 0 or 1.
one_network() { draw 3; NETWORK=$DRAWN; [ "$NETWORK" != 2 ] || NETWORK=all; }
one_path() { draw 2; NETWORK=$DRAWN; }
one_way() { draw 3; case $DRAWN in 0) WAY="" ;; 1) WAY="client server" ;; 2) WAY="server client" ;; esac; }
# a_while: up to 4 s.
a_while() { draw 40; sleep $((DRAWN / 10)).$((DRAWN % 10)); }

# network FAULT: of one network or all, in one direction or both.
network() {
	one_network
	one_way
	WHAT="$1 on ${NETWORK}${WAY:+ from ${WAY/ / to }}"
	# shellcheck disable=SC2086
	must net "$1" $NETWORK $WAY
	a_while
	must net pass
}
cut() { network cut; }
loss() { network loss=10; }
delay() { network delay=500; }
duplicate() { network duplicate=20; }
corrupt() { network corrupt=5; }
# What was held arrives when the connection may be gone.
held() {
	one_network
	WHAT="held on $NETWORK"
	must net hold "$NETWORK" client server
	a_while
	must net release "$NETWORK" client server
}
frozen() { must power server stop; a_while; must power server cont; }
link() {
	one_path
	WHAT="server's link $NETWORK"
	must server_link down "rxe$NETWORK"
	a_while
	must server_link up "rxe$NETWORK"
	heal
}
own_link() {
	local dev
	! uml || { cut; return; }
	one_path
	WHAT="client's link $NETWORK"
	dev=$(rxe_netdev "rxe$NETWORK")
	must ip link set "$dev" down
	a_while
	must ip link set "$dev" up
	heal
}
own_device() {
	local dev
	one_path
	WHAT="client's rxe$NETWORK"
	dev=$(rxe_netdev "rxe$NETWORK")
	must rdma link delete "rxe$NETWORK"
	a_while
	must rxe_add "$dev" "rxe$NETWORK"
}
device() {
	one_path
	WHAT="server's rxe$NETWORK"
	must remote "rxe_netdev rxe$NETWORK >/run/netdev; rdma link delete rxe$NETWORK"
	a_while
	must remote "rxe_add \$(</run/netdev) rxe$NETWORK"
}
port() {
	one_path
	WHAT="port $NETWORK"
	must remote "store $C/ports/p$NETWORK/enable 0"
	a_while
	must remote "store $C/ports/p$NETWORK/enable 1"
}
export_off() {
	must remote "store $C/exports/e/enable 0"
	a_while
	must remote "store $C/exports/e/enable 1"
}
path_off() {
	one_path
	WHAT="path $NETWORK"
	must path_rm m "$(path_name "$NETWORK")"
	a_while
	must path_add m "$(path_name "$NETWORK")" "$(address server "$NETWORK")"
}
# Reconnects, each before the one before has settled.
reconnects() {
	local i
	for i in 1 2 3 4 5 6; do
		one_path
		must store "$C/maps/m/paths/$(path_name "$NETWORK")/enable" 0
		draw 4
		sleep 0.$DRAWN
		must store "$C/maps/m/paths/$(path_name "$NETWORK")/enable" 1
	done
}
# One path is bad, the other one goes.
two() {
	one_path
	WHAT="loss on $NETWORK, and port $((1 - NETWORK))"
	must net loss=5 "$NETWORK"
	must remote "store $C/ports/p$((1 - NETWORK))/enable 0"
	a_while
	must remote "store $C/ports/p$((1 - NETWORK))/enable 1"
	must net pass
}
reload() { must remote 'clean; remove_module'; a_while; must remote load_module; offer_again; }
dies() { must server_off; a_while; must server_on; offer_again; }

# What is in memory does not outlive the others.
ALL=(cut cut cut loss loss delay duplicate corrupt held held frozen link own_link own_device device port path_off path_off reconnects two)
FORGETFUL=(export_off reload dies)

# storm COUNT FAULT...: each of these comes once before any comes again.
storm() {
	local i fault left=() begin
	note "FARBLK_SEED=$SEED"
	RANDOM=$SEED
	start 0 1
	for ((i = 1; i <= $1; i++)); do
		[ ${#left[@]} != 0 ] || left=("${@:2}")
		draw ${#left[@]}
		fault=${left[DRAWN]} WHAT=""
		left=("${left[@]:0:DRAWN}" "${left[@]:DRAWN+1}")
		begin=$(now_ms)
		"$fault"
		note "$i: $fault${WHAT:+: $WHAT}: $(($(now_ms) - begin)) ms; $(states)"
		resumes $((NO_PATH + 5))
		# A path that stays lost would spare those after it half of their work.
		((i % 10)) || all_live_in $((AGAIN * 3))
		! stamp_ended || die "stamp has ended: $(cat /run/stamp.out)"
	done
	finish
}

on_block() { KIND=block storm "$FAULTS" "${ALL[@]}" "${FORGETFUL[@]}"; }
on_ram() { KIND=ram storm $((FAULTS / 4)) "${ALL[@]}"; }

[[ ${FARBLK_KINDS:-block} != *block* ]] || scenario on_block "$FAULTS random faults, block"
[[ ${FARBLK_KINDS:-ram} != *ram* ]] || scenario on_ram "$((FAULTS / 4)) random faults, ram"
run_scenarios
