#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What the server does with clients that lose paths, come back, or do not: sessions.py is the
# client. One host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE FARBLK_SERVER
# Of the slow device: long enough for a slow machine to do something meanwhile.
SLOW_MS=5000
export SLOW_MS

# start GROUP: the exports that its cases use. A disk of the slow device takes ten seconds to come
# and go.
start() {
	not_local
	needs python3
	needs_user_rdma
	needs_module null_blk
	export_of one
	export_of fresh
	export_of many max_clients=64
	export_of host allow_any_host=0
	must admit host hostile
	case $1 in epochs | fences | commands) slow_export slow ;; esac
	must export_ram ram 1M max_clients=64
	must export_ram rules 1M max_clients=16 allow_any_host=0
	must admit rules hostile
	must admit rules reader
	must export_ram private 1M
	must export_ram kept 1M scrub=0
}
# admit EXPORT HOST: to read.
admit() { mkdir "$C/exports/$1/hosts/$2" && store "$C/exports/$1/hosts/$2/access" ro; }

# export_of NAME [ATTRIBUTE=VALUE]...: one of a device of 32 MiB. slow_export NAME: of one that
# takes its time.
export_of() { back "null_disk fb$1 32 blocksize=512"; must serve_block "$1" "$BACK" "${@:2}"; }
slow_export() {
	back "null_disk fb$1 32 blocksize=512 irqmode=2 completion_nsec=$((SLOW_MS * 1000000))"
	# Each command is a request of its own.
	must store "/sys/class/block/fb$1/queue/nomerges" 2
	must serve_block "$1" "$BACK"
}

sessions() {
	local rc
	start "$1"
	python3 "$HERE/sessions.py" "$FARBLK_SERVER" "$1" 2>&1 | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	[ $rc != 4 ] || skip "user space has no RDMA"
	[ $rc = 0 ] || bad "sessions.py $1 ends with $rc"
	wait_for 30 nobody || bad "what the server still has:"$'\n'"$(grep . "$C"/exports/*/clients "$D/server/connections")"
}
nobody() { awk '{n += $1} END {exit n != 0}' "$C"/exports/*/clients && [ ! -s "$D/server/connections" ]; }

epochs() { sessions epochs; }
fences() { sessions fences; }
reservation() { sessions reservation; }
hosts() { sessions hosts; }
leases() { sessions leases; }
silence() { sessions silence; }
commands() { sessions commands; }

# A port whose device goes listens again when there is one.
port() {
	local dev
	not_local
	must serve e 8M
	dev=$(rxe_netdev)
	must rdma link delete rxe0
	wait_for 30 state_is error || bad "the port's state is '$(show "$C/ports/p/state")'"
	is "its device" "$(show "$C/ports/p/device")" ""
	[[ $(show "$C/ports/p/last_error") == "ENODEV "*"$FARBLK_SERVER"* ]] || bad "its last_error is '$(show "$C/ports/p/last_error")'"
	sleep 3
	is "its state after 3 s" "$(show "$C/ports/p/state")" error
	must rxe_add "$dev"
	wait_for 30 state_is listening || bad "the port's state is '$(show "$C/ports/p/state")'"
	no_error ports/p
	is "its device" "$(show "$C/ports/p/device")" rxe0
	must map m e
	must direct_read "$DEV" /dev/null count=1
	must unmap m
	# It can be disabled while it tries.
	must rdma link delete rxe0
	wait_for 30 state_is error || bad "the port's state is '$(show "$C/ports/p/state")'"
	within 5 must store "$C/ports/p/enable" 0
	must rmdir "$C/ports/p"
	must rxe_add "$dev"
}
# So does one whose address goes, of which the RDMA core tells nobody; sessions that came in by it
# are lost when nothing arrives.
address() {
	local dev port
	not_local
	must serve e 8M
	dev=$(rxe_netdev)
	must ip addr add 10.77.0.1/24 dev "$dev"
	must ip addr add fd77::1/64 dev "$dev" nodad
	must settings "$C/ports/p" enable=0 addr=10.77.0.1
	must mkdir "$C/ports/six"
	must store "$C/ports/six/addr" "[fd77::1]:7421"
	# The device has the address a moment later.
	for port in p six; do wait_for 10 store "$C/ports/$port/enable" 1 || bad "enable: $(show "$C/ports/$port/refusal")"; done
	must port_add all 0.0.0.0:7422
	must ip addr del 10.77.0.1/24 dev "$dev"
	must ip addr del fd77::1/64 dev "$dev"
	wait_for 10 state_is error || bad "the port's state is '$(show "$C/ports/p/state")'"
	wait_for 10 says_no_address p 10.77.0.1 || bad "its last_error is '$(show "$C/ports/p/last_error")'"
	wait_for 10 says_no_address six fd77::1 || bad "the last_error of the other is '$(show "$C/ports/six/last_error")'"
	is "a port at all addresses" "$(show "$C/ports/all/state")" listening
	must ip addr add 10.77.0.1/24 dev "$dev"
	wait_for 10 state_is listening || bad "the port's state is '$(show "$C/ports/p/state")'"
	no_error ports/p
	must ip addr del 10.77.0.1/24 dev "$dev"
}
says_no_address() { [ "$(show "$C/ports/$1/last_error")" = "EADDRNOTAVAIL no interface of this host has the address $2" ]; }
state_is() { [ "$(show "$C/ports/p/state")" = "$1" ]; }

# Memory goes to another host, and overwriting it takes longer than a login waits.
scrub() {
	local host instance start took
	not_local
	needs_broken
	reload_server "FARBLK_KO=$FARBLK_BROKEN load_module $(broken slow-scrub)"
	must serve e 16M
	host=$(show "$C/host_name")
	must map m e
	instance=$(show "$C/maps/m/instance")
	must direct_write /dev/urandom "$DEV" bs=1M count=16
	must direct_read "$DEV" /run/scrub.before
	must unmap m
	must map m e
	is "the instance for the same host" "$(show "$C/maps/m/instance")" "$instance"
	must direct_read "$DEV" /run/scrub.now
	must cmp /run/scrub.before /run/scrub.now
	must unmap m
	at_exit "store $C/host_name $host"
	must store "$C/host_name" another
	# Who may only read neither sees nor destroys it.
	must map_make m e access=ro
	refused EBUSY "$C/maps/m/enable" 1 "the memory has what another host wrote"
	must store "$C/maps/m/access" rw
	start=$(now_ms)
	refused EBUSY "$C/maps/m/enable" 1 "the memory is being overwritten: [0-9]+ of 16 MiB are done$"
	took=$(($(now_ms) - start))
	note "refused after $took ms: $(show "$C/maps/m/last_error")"
	[ $took -ge 1900 ] || bad "a login does not wait"
	wait_for 30 store "$C/maps/m/enable" 1 || die "the memory is never overwritten: $(show "$C/maps/m/last_error")"
	must map_on m
	[ "$(show "$C/maps/m/instance")" != "$instance" ] || bad "the instance is still $instance"
	must cmp -n 16M "$DEV" /dev/zero
	must direct_write /run/scrub.before "$DEV"
	must unmap m
	# An export is disabled at once while its memory is overwritten for the next host.
	must store "$C/host_name" "$host"
	must map_make m e
	refused EBUSY "$C/maps/m/enable" 1 "the memory is being overwritten"
	within 3 must store "$C/exports/e/enable" 0
	must map_rm m
}

scenario epochs "paths and their epochs"
scenario fences "fences"
scenario reservation "whose an export is"
scenario hosts "hosts, and what they may do"
scenario leases "leases, and what the server remembers"
scenario silence "clients of which nothing is heard"
scenario commands "commands that run, and an export that is disabled meanwhile"
scenario port "a port whose device is removed"
scenario address "a port whose address is removed"
scenario scrub "memory that goes to another host is overwritten first"
run_scenarios
