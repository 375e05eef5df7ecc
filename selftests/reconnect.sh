#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# One path, and it breaks: I/O waits, is done when the path is back, and loses nothing. FARBLK_KINDS=KIND: exports of that kind only.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1

# --- the contents stay ---------------------------------------------------------------------------------------------

network_cut() { start 0; survives "net cut 0" "net pass 0"; }
one_way_cut() { start 0; survives "net cut 0 server client" "net pass 0"; }

long_cut() {
	start 0
	WHILE=15
	survives "net cut 0" "net pass 0"
}

server_link_down() {
	start 0
	survives "must server_link down" "must server_link up; heal"
}

own_link_down() {
	! uml || skip "User Mode Linux's network does not stand it"
	start 0
	survives 'must ip link set "$(rxe_netdev)" down' 'must ip link set "$(rxe_netdev)" up; heal'
}

own_device_removed() {
	local dev
	start 0
	dev=$(rxe_netdev)
	survives "within 20 must rdma link delete rxe0" "must rxe_add $dev"
}

server_device_removed() {
	start 0
	survives "must remote 'rxe_netdev >/run/netdev; rdma link delete rxe0'" "must remote 'rxe_add \$(</run/netdev)'"
}

server_frozen() {
	start 0
	WHILE=8
	survives "must power server stop" "must power server cont"
}

port_disabled() {
	start 0
	survives "must remote 'store $C/ports/p0/enable 0'" "must remote 'store $C/ports/p0/enable 1'"
}

# The last path stays; another one takes its place.
path_replaced() {
	start 0
	refused EBUSY "$C/maps/m/paths/a/enable" 0
	must path_add m b "$FARBLK_SERVER"
	all_live_in "$AGAIN"
	must path_rm m a
	resumes "$AGAIN"
	finish
}

# Again and again, before the one before has settled.
storm_of_cuts() {
	local i
	start 0
	for ((i = 0; i < 10; i++)); do
		net cut 0
		sleep 0.$((RANDOM % 9 + 1))
		net pass 0
		sleep $((RANDOM % 2)).$((RANDOM % 10))
	done
	resumes "$AGAIN"
	finish
}

# --- the server forgets all ----------------------------------------------------------------------------------------

# forgets FAULT UNDO: contents on a disk survive that, contents in memory do not.
forgets() {
	start 0
	if [ "$KIND" = block ]; then
		survives "$1" "$2"
	else
		eval "$1"
		sleep 1
		eval "$2"
		wait_for "$AGAIN" map_is stale || die "not stale: $(states)"
		note "$(states)"
		wait_for 5 dead_read || bad "a stale map reads"
		# What is there now is nobody's.
		touch /run/stamp.stop
		wait_for 10 stamp_ended || die "stamp does not end"
		[ "$(stamped lost)$(stamped reverted)$(stamped alien)$(stamped torn)" = 0000 ] || bad "$(cat /run/stamp.out)"
		[ "$(stamped read_errors)" != 0 ] || bad "no read failed"
		must unmap m
		# The new contents are there for who wants them.
		must map m e
		must cmp -n $((SIZE << 20)) "$DEV" /dev/zero
		must unmap m
	fi
}
dead_read() {
	local got
	got=$(errno_of direct_read "$DEV" /dev/null bs=4k count=1)
	[[ $got =~ ^(EIO|ENOLINK|ESTALE)$ ]]
}

server_dies() { WHILE=1; forgets "must server_off" "must server_on; offer_again"; }
server_reloads() { WHILE=1; forgets "must remote 'clean; remove_module'" "must remote load_module; offer_again"; }
export_disabled() { forgets "within 10 must remote 'store $C/exports/e/enable 0'" "must remote 'store $C/exports/e/enable 1'"; }

# --- the time for which I/O waits ------------------------------------------------------------------------------------

# I/O fails after that time, not before; the path comes back by itself, and what was complete is there.
no_path_timeout() {
	local begin ms
	start 0 -- no_path_timeout_ms=4000
	begin=$(now_ms)
	net cut 0
	until grep -q . <(errno_of direct_read "$DEV" /dev/null bs=4k count=1 | grep -v OK); do sleep 0.2; done
	ms=$(($(now_ms) - begin))
	note "the first error after $ms ms: $(states)"
	[ $ms -ge 4000 ] || bad "I/O failed too early"
	[ $ms -le $((20000 * ${FARBLK_PATIENCE:-1})) ] || bad "I/O failed too late"
	is state "$(map_of state)" failed
	within 5 dead_read || bad "I/O does not fail at once"
	net pass 0
	all_live_in "$AGAIN"
	resumes 5
	stamp_off 20
	must unmap m
}

fails_at_once() {
	start 0 -- no_path_timeout_ms=0
	net cut 0
	wait_for 20 dead_read || bad "I/O waits: $(states)"
	net pass 0
	all_live_in "$AGAIN"
	stamp_off 20
	must unmap m
}

waits_for_ever() {
	start 0 -- no_path_timeout_ms=-1
	WHILE=15
	survives "net cut 0" "net pass 0"
}

# A map without a path is removed as any other.
removed_meanwhile() {
	start 0
	net cut 0
	sleep 3
	ends "enable=0 of an open disk" EBUSY store "$C/maps/m/enable" 0
	within 15 must store "$C/maps/m/enable" force
	touch /run/stamp.stop
	wait_for 10 stamp_ended || bad "I/O hangs after force"
	net pass 0
	must map_rm m
}

# --- the export becomes somebody else's ------------------------------------------------------------------------------

# The other one is the server itself. It has to wait for its turn.
evicted() {
	start 0 -- no_path_timeout_ms=1000 heartbeat_ms=500
	net cut 0
	sleep 2
	must remote "map_make m e"
	is "the other one at once" "$(remote "errno_of store $C/maps/m/enable 1")" EBUSY
	wait_for 40 remote "store $C/maps/m/enable 1" || die "the export does not become free"
	net pass 0
	wait_for 40 map_is evicted || bad "not evicted: $(states)"
	wait_for 5 dead_read || bad "an evicted map reads"
	touch /run/stamp.stop
	wait_for 10 stamp_ended || die "stamp does not end"
	must remote "unmap m"
	must unmap m force
}

both network_cut "no packet for 3 s"
both one_way_cut "no packet from the server for 3 s"
both long_cut "no packet for 15 s"
both storm_of_cuts "cut after cut"
both server_link_down "the server's link goes down and up"
both own_link_down "the client's link goes down and up"
both own_device_removed "the client's RDMA device goes and comes"
both server_device_removed "the server's RDMA device goes and comes"
both server_frozen "the server freezes for 8 s"
both port_disabled "the port is disabled and enabled"
both path_replaced "another path takes the place of the last one"
both export_disabled "the export is disabled and enabled"
both server_reloads "the server's module goes and comes"
both server_dies "the server dies and boots"
both no_path_timeout "I/O fails when it has waited for no_path_timeout_ms"
both fails_at_once "it does so at once with 0"
both waits_for_ever "it waits for ever with -1"
both removed_meanwhile "the map is removed while it has no path"
both evicted "another host takes the export"
run_scenarios
