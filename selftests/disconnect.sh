#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The other side goes away. Whose I/O does not wait for a path (no_path_timeout_ms=0) has errors in
# bounded time, is told why in words, and works again when the other side is back. What waits, goes
# on; reconnect.sh looks closer at that.
. "$(dirname "$0")/lib.sh"
# Seconds within which I/O must have ended when the peer is silent, and when it said goodbye.
SILENT=${FARBLK_SILENT_SECONDS:-20}
GOODBYE=20
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

# start [ATTRIBUTE=VALUE]...: I/O on map m, which does not wait for a path.
start() {
	serve_kind 32
	must map m e no_path_timeout_ms=0 heartbeat_ms=2000 "$@"
	fio --name=load --filename="$DEV" --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=8 --numjobs=2 --time_based --runtime=120 \
		>/run/fio.out 2>&1 &
	FIO=$!
	trap 'kill $FIO 2>/dev/null' EXIT
	sleep 1
	kill -0 $FIO 2>/dev/null || die "fio ended before anything happened: $(tail -n 3 /run/fio.out)"
}

state_is() { [ "$(show "$C/maps/m/state")" = "$1" ]; }
path_error() { show "$C/maps/m/paths/a/last_error"; }

# fails_within SECONDS [STATE]: fio stops with an I/O error; the map says why; a new request fails
# at once.
fails_within() {
	local start=$SECONDS
	if wait_for "$1" ended "$FIO"; then
		wait "$FIO" && bad "fio saw no error"
		grep -q "Input/output error\|error=\|err=" /run/fio.out || bad "fio: $(tail -n 3 /run/fio.out)"
	else
		wrong "I/O still hangs after $1 s"
	fi
	note "$((SECONDS - start)) s: $(show "$C/maps/m/state"), $(show "$C/maps/m/last_error")"
	wait_for 30 state_is "${2:-failed}" || bad "state is '$(show "$C/maps/m/state")', not '${2:-failed}'"
	[[ $(show "$C/maps/m/last_error") == E?*" "?* ]] || bad "last_error is '$(show "$C/maps/m/last_error")'"
	within 5 dead_read
	is "state after a read" "$(show "$C/maps/m/state")" "${2:-failed}"
}

dead_read() {
	local got
	got=$(errno_of direct_read "$DEV" /dev/null count=1)
	[[ $got =~ ^(EIO|ENOLINK)$ ]] || bad "a read of the dead disk is '$got'"
}

# comes_back: with the server as it was the map works again, without anybody doing anything.
comes_back() {
	local start=$SECONDS
	wait_for 60 state_is live || die "the map is $(show "$C/maps/m/state"): $(show "$C/maps/m/last_error")"
	note "back after $((SECONDS - start)) s, for the time $(show "$C/maps/m/paths/a/reconnects")"
	no_error maps/m
	no_error maps/m/paths/a
	must direct_read "$DEV" /dev/null count=1
	must direct_write /dev/zero "$DEV" count=1
	goes
}
# goes: it is unmapped as any other, and the server knows.
goes() {
	within 10 must store "$C/maps/m/enable" 0
	is device "$(show "$C/maps/m/device")" ""
	must map_rm m
	wait_for 30 no_clients || bad "the server still has $(remote "show $C/exports/e/clients") client(s)"
}
no_clients() { [ "$(remote "show $C/exports/e/clients")" = 0 ]; }
# is_other: what was in a disabled export of RAM is gone; the disk says so until somebody maps the
# new contents.
is_other() {
	wait_for 60 state_is stale || die "the map is $(show "$C/maps/m/state"): $(show "$C/maps/m/last_error")"
	[[ $(show "$C/maps/m/last_error") == "ESTALE "?* ]] || bad "last_error is '$(show "$C/maps/m/last_error")'"
	logs "map m: stale, I/O fails: the contents are gone"
	within 5 dead_read
	sleep 2
	is state "$(show "$C/maps/m/state")" stale
	within 10 must store "$C/maps/m/enable" 0
	must map_on m
	must direct_read "$DEV" /dev/null count=1
	goes
}
# back_as_it_was: an export that was disabled is enabled again.
back_as_it_was() { if [ "$KIND" = ram ]; then is_other; else comes_back; fi; }

export_disabled() {
	start
	within 10 must remote "store $C/exports/e/enable 0"
	fails_within $GOODBYE
	must remote "store $C/exports/e/enable 1"
	back_as_it_was
}

port_disabled() {
	start
	within 10 must remote "store $C/ports/p/enable 0"
	fails_within $GOODBYE
	wait_for $GOODBYE refused_path || bad "last_error of the path is '$(path_error)'"
	must remote "store $C/ports/p/enable 1"
	comes_back
}
refused_path() { [[ $(path_error) == "ECONNREFUSED "?* ]]; }

# I/O waits for the time that it is to, and then fails; the map comes back all the same.
expires() {
	local start
	start no_path_timeout_ms=5000
	start=$SECONDS
	within 10 must remote "store $C/ports/p/enable 0"
	wait_for $GOODBYE state_is reconnecting || bad "state is '$(show "$C/maps/m/state")'"
	fails_within 15
	[ $((SECONDS - start)) -ge 4 ] || bad "I/O failed after $((SECONDS - start)) s"
	logs "map m: no usable path, I/O waits: the connection to .* was lost$"
	logs "map m: no usable path, I/O fails: ."
	must remote "store $C/ports/p/enable 1"
	comes_back
	logs "map m: a path is up again$"
}

# I/O that waits goes on, and sees no error.
waits() {
	start no_path_timeout_ms=60000
	within 10 must remote "store $C/ports/p/enable 0"
	wait_for $GOODBYE state_is reconnecting || bad "state is '$(show "$C/maps/m/state")'"
	sleep 3
	! ended "$FIO" || bad "I/O did not wait: $(tail -n 3 /run/fio.out)"
	must remote "store $C/ports/p/enable 1"
	wait_for 60 state_is live || bad "the map is $(show "$C/maps/m/state"): $(show "$C/maps/m/last_error")"
	sleep 1
	kill -INT $FIO
	wait_for $GOODBYE ended "$FIO" || bad "I/O hangs"
	wait $FIO
	! grep -q "error=\|err=[^ ]*[1-9]" /run/fio.out || bad "fio: $(tail -n 3 /run/fio.out)"
	comes_back
}

server_in_use() {
	start
	is "rmmod on the server" "$(remote 'errno_of rmmod farblk' | grep -c OK)" 0
	kill $FIO
	wait $FIO
	must store "$C/maps/m/enable" 0
}

# link_can_go: the guests' network stands it. The driver of User Mode Linux completes packets of
# before, on the other host, too: BUG at lib/dynamic_queue_limits.c, now and then.
link_can_go() {
	two_hosts || skip "needs two hosts"
	! grep -q "User Mode Linux" /proc/cpuinfo || skip "User Mode Linux's network does not stand it"
}

server_link_down() {
	link_can_go
	start
	must remote 'ip link set "$(rxe_netdev)" down'
	fails_within $SILENT
	must remote 'ip link set "$(rxe_netdev)" up'
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
	link_can_go
	start
	must ip link set "$(rxe_netdev)" down
	# While it is down virtio_net keeps packets that hold references on rxe's queue pairs.
	fails_within $SILENT
	must ip link set "$(rxe_netdev)" up
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

# The same while the map looks for a peer that no host is: it hears of it at once. It is bound to
# the device by its source.
own_device_removed_early() {
	local dev pause pid early got=""
	two_hosts || skip "needs two hosts"
	must mkdir "$C/maps/m" "$C/maps/m/paths/a"
	must settings "$C/maps/m" export=e
	must settings "$C/maps/m/paths/a" "addr=${FARBLK_SERVER%.*}.199" "source=$(address client 0)" enable=1
	dev=$(rxe_netdev)
	for pause in 0.2 0.5 0.8; do
		store "$C/maps/m/enable" 1 2>/dev/null &
		pid=$!
		sleep $pause
		! ended $pid && early="" || early=1
		within 10 must rdma link delete rxe0
		within 10 wait $pid && bad "the map is enabled"
		note "$(show "$C/maps/m/last_error")"
		got+=$(show "$C/maps/m/last_error")
		# The attempt may have ended before the device went.
		[ -n "$early" ] || [[ $(show "$C/maps/m/last_error") == ENODEV* ]] || bad "last_error is '$(show "$C/maps/m/last_error")'"
		must rxe_add "$dev"
	done
	[[ $got == *ENODEV* ]] || bad "each attempt ended before its device went"
	must map_rm m
}

server_device_removed() {
	two_hosts || skip "needs two hosts"
	start
	must remote 'rxe_netdev >/run/netdev; rdma link delete rxe0'
	fails_within $SILENT
	is "the server's clients" "$(remote "show $C/exports/e/clients")" 0
	is "the server's port" "$(remote "show $C/ports/p/state")" error
	must remote 'rxe_add "$(cat /run/netdev)"'
	comes_back
	is "the server's port" "$(remote "show $C/ports/p/state")" listening
}

# A mapped, idle disk whose server went away is unmapped as any other, whether I/O would wait or
# not.
idle() {
	local timeout
	serve_kind 8
	for timeout in 0=failed 60000=reconnecting; do
		must map m e no_path_timeout_ms=${timeout%=*}
		must remote "store $C/ports/p/enable 0"
		wait_for $GOODBYE state_is ${timeout#*=} || bad "state is '$(show "$C/maps/m/state")', not ${timeout#*=}"
		within 10 must unmap m
		must remote "store $C/ports/p/enable 1"
	done
}

# force while I/O runs and the disk is open: the I/O fails, and a process that
# has it open does no harm.
forced() {
	start
	force
}
# The same while I/O waits for a path.
forced_waiting() {
	start no_path_timeout_ms=-1
	must remote "store $C/ports/p/enable 0"
	wait_for $GOODBYE state_is reconnecting || bad "state is '$(show "$C/maps/m/state")'"
	force
	must remote "store $C/ports/p/enable 1"
}
force() {
	exec 5<>"$DEV"
	refused EBUSY "$C/maps/m/enable" 0
	within 10 must store "$C/maps/m/enable" force
	wait_for $GOODBYE ended "$FIO" || bad "I/O hangs after force"
	is "bytes read from the removed disk" "$(dd bs=4096 count=1 status=none <&5 2>/dev/null | wc -c)" 0
	exec 5<&-
	is state "$(show "$C/maps/m/state")" disabled
	wait_for 30 no_clients || bad "the server still has $(remote "show $C/exports/e/clients") client(s)"
	must map_rm m
}

# The last one: nobody comes back.
server_dead() {
	[ -n "${FARBLK_AGENT:-}" ] || skip "only in the guests: it turns the server off"
	start
	must power server off
	touch /run/server-is-off
	fails_within $SILENT
	within 10 must store "$C/maps/m/enable" 0
	must map_rm m
	must rmmod farblk
	must load_module
}

both export_disabled "the export is disabled under I/O"
both port_disabled "the port is disabled under I/O"
both expires "I/O waits for a port that is disabled, for a while"
both waits "I/O waits for a port that is disabled, and goes on"
both server_in_use "the server's module stays while it is used"
both idle "the port is disabled under an idle disk"
both forced "enable=force under I/O and an open disk"
both forced_waiting "enable=force while I/O waits for a path"
both server_link_down "the server's link goes down under I/O"
both own_link_down "the client's link goes down under I/O"
both server_frozen "the server freezes under I/O"
both own_device_removed "the client's RDMA device is deleted under I/O"
scenario own_device_removed_early "the client's RDMA device is deleted while a path looks for its peer"
both server_device_removed "the server's RDMA device is deleted under I/O"
KIND=block
scenario server_dead "the server dies under I/O"
run_scenarios
