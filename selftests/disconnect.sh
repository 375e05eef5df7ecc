#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The other side goes away: I/O ends with an error in bounded time, the map says so in words, and goes without a fight.
. "$(dirname "$0")/lib.sh"
# Seconds within which I/O must have ended when the peer is silent, and when it said goodbye.
SILENT=${FARBLK_SILENT_SECONDS:-40}
GOODBYE=10
# FARBLK_KINDS=KIND: exports of that kind only.

# serve_kind MIB: export e, of KIND.
serve_kind() {
	if [ "$KIND" = block ]; then
		needs_module null_blk
		back "null_disk fbd $1"
		must serve_block e "$BACK"
	else
		must serve e "$1M"
	fi
}

start() {
	serve_kind 32
	must map m e io_timeout_ms=5000
	fio --name=load --filename="$DEV" --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=8 --numjobs=2 --time_based --runtime=120 \
		>/run/fio.out 2>&1 &
	FIO=$!
	trap 'kill $FIO 2>/dev/null' EXIT
	sleep 1
	kill -0 $FIO 2>/dev/null || die "fio ended before anything happened: $(tail -n 3 /run/fio.out)"
}
fio_ended() { ! kill -0 "$FIO" 2>/dev/null; }

# fails_within SECONDS [COMMAND...]: fio stops with an I/O error, then COMMAND is run; the map says why; a new request
# fails at once; unmapping works.
fails_within() {
	local start=$SECONDS
	if wait_for "$1" fio_ended; then
		wait "$FIO" && bad "fio saw no error"
		grep -q "Input/output error\|error=\|err=" /run/fio.out || bad "fio: $(tail -n 3 /run/fio.out)"
	else
		bad "I/O still hangs after $1 s"
	fi
	"${@:2}"
	note "$((SECONDS - start)) s: $(show "$C/maps/m/state"), $(show "$C/maps/m/last_error")"
	is state "$(show "$C/maps/m/state")" failed
	[[ $(show "$C/maps/m/last_error") == E?*" "?* ]] || bad "last_error is '$(show "$C/maps/m/last_error")'"
	within 5 dead_read
	within 10 must store "$C/maps/m/enable" 0
	is device "$(show "$C/maps/m/device")" ""
}

dead_read() {
	local got
	got=$(errno_of direct_read "$DEV" /dev/null count=1)
	[[ $got =~ ^(EIO|ENOLINK)$ ]] || bad "a read of the dead disk is '$got'"
}

# comes_back: with the server as it was, the same map works again.
comes_back() {
	wait_for 15 store "$C/maps/m/enable" 1 || die "not mapped again: $(show "$C/maps/m/last_error")"
	DEV=/dev/$(show "$C/maps/m/device")
	must direct_read "$DEV" /dev/null count=1
	must unmap m
	wait_for 5 no_clients || bad "the server still has $(remote "show $C/exports/e/clients") client(s)"
}
no_clients() { [ "$(remote "show $C/exports/e/clients")" = 0 ]; }

export_disabled() {
	start
	within 10 must remote "store $C/exports/e/enable 0"
	fails_within $GOODBYE
	must remote "store $C/exports/e/enable 1"
	comes_back
}

port_disabled() {
	start
	within 10 must remote "store $C/ports/p/enable 0"
	# Whether sessions outlive their port or not, they end with the export.
	within 10 must remote "store $C/exports/e/enable 0"
	fails_within $GOODBYE
	must remote "store $C/exports/e/enable 1; store $C/ports/p/enable 1"
	comes_back
}

server_in_use() {
	start
	is "rmmod on the server" "$(remote 'errno_of rmmod farblk' | grep -c OK)" 0
	kill $FIO
	wait $FIO
	must store "$C/maps/m/enable" 0
}

server_link_down() {
	two_hosts || skip "needs two hosts"
	start
	must remote 'ip link set "$(rxe_netdev)" down'
	fails_within $SILENT must remote 'ip link set "$(rxe_netdev)" up'
	must remote rxe_heal
	comes_back
}

server_frozen() {
	[ -n "${FARBLK_AGENT:-}" ] || skip "only in the guests: it freezes the server"
	start
	must power server stop
	fails_within $SILENT
	must power server cont
	comes_back
}

own_link_down() {
	two_hosts || skip "needs two hosts"
	# Its driver completes packets of before: BUG at lib/dynamic_queue_limits.c, now and then.
	! grep -q "User Mode Linux" /proc/cpuinfo || skip "User Mode Linux's network does not stand it"
	start
	must ip link set "$(rxe_netdev)" down
	# While it is down virtio_net keeps packets that hold references on rxe's queue pairs.
	fails_within $SILENT must ip link set "$(rxe_netdev)" up
	must rxe_heal
	comes_back
}

own_device_removed() {
	local dev
	two_hosts || skip "needs two hosts"
	start
	dev=$(rxe_netdev)
	within 20 must rdma link delete rxe0
	fails_within $GOODBYE
	must rxe_add "$dev"
	comes_back
}

server_device_removed() {
	two_hosts || skip "needs two hosts"
	start
	must remote 'rxe_netdev >/run/netdev; rdma link delete rxe0'
	fails_within $SILENT
	is "the server's clients" "$(remote "show $C/exports/e/clients")" 0
	is "the server's port" "$(remote "show $C/ports/p/state")" error
	must remote 'rxe_add "$(cat /run/netdev)"'
	# By itself.
	wait_for 5 listens || bad "the server's port is $(remote "show $C/ports/p/state")"
	comes_back
}

listens() { [ "$(remote "show $C/ports/p/state")" = listening ]; }

# A mapped, idle disk whose server went away is unmapped as any other.
idle() {
	serve_kind 8
	must map m e
	must remote "store $C/exports/e/enable 0"
	wait_for $GOODBYE says_failed || bad "state is '$(show "$C/maps/m/state")'"
	within 10 must unmap m
}
says_failed() { [ "$(show "$C/maps/m/state")" = failed ]; }

# force while I/O runs and the disk is open: the I/O fails, whoever has it open does no harm.
forced() {
	start
	exec 5<>"$DEV"
	refused EBUSY "$C/maps/m/enable" 0
	within 10 must store "$C/maps/m/enable" force
	wait_for $GOODBYE fio_ended || bad "I/O hangs after force"
	is "bytes read from the removed disk" "$(dd bs=4096 count=1 status=none <&5 2>/dev/null | wc -c)" 0
	exec 5<&-
	comes_back
}

# The last one: nobody comes back.
server_dead() {
	[ -n "${FARBLK_AGENT:-}" ] || skip "only in the guests: it turns the server off"
	start
	must power server off
	touch /run/server-is-off
	fails_within $SILENT
	must map_rm m
	must rmmod farblk
	must load_module
}

# both FUNCTION WORDS: a scenario with an export of either kind.
both() {
	local kind
	for kind in ${FARBLK_KINDS:-ram block}; do
		eval "$1_$kind() { KIND=$kind; $1; }"
		scenario "$1_$kind" "$2, $kind"
	done
}

both export_disabled "the export is disabled under I/O"
both port_disabled "port and export are disabled under I/O"
both server_in_use "the server's module stays while it is used"
both idle "the export is disabled under an idle disk"
both forced "enable=force under I/O and an open disk"
both server_link_down "the server's link goes down under I/O"
both own_link_down "the client's link goes down under I/O"
both server_frozen "the server freezes under I/O"
both own_device_removed "the client's RDMA device is deleted under I/O"
both server_device_removed "the server's RDMA device is deleted under I/O"
KIND=block
scenario server_dead "the server dies under I/O"
run_scenarios
