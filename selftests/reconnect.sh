#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# One path, and it breaks: I/O waits, is done when the path is back, and loses nothing.
# FARBLK_KINDS=KIND: exports of that kind only.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1

# --- the contents stay ----------------------------------------------------------------------------

network_cut() { start 0; WHILE=5; survives "must net cut 0" "must net pass 0"; }
one_way_cut() { start 0; WHILE=5; survives "must net cut 0 server client" "must net pass 0"; }

long_cut() {
	start 0
	WHILE=15
	survives "must net cut 0" "must net pass 0"
}

server_link_down() {
	start 0
	WHILE=5
	survives "must server_link down" "must server_link up; heal"
}

own_link_down() {
	! uml || skip "User Mode Linux's network does not stand it"
	start 0
	WHILE=5
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

# The server has too little memory for the queues that the map asks for, and both paths come back
# with what they got: to ask for more again would be more than a host may have.
shorter_queues() {
	local was
	start 0 1 -- queues=64 depth=1024
	was=$(remote "cat $D/server/accounts")
	note "$was"
	must remote "store $C/ports/p0/enable 0; store $C/ports/p1/enable 0"
	sleep 1
	must remote "store $C/ports/p0/enable 1; store $C/ports/p1/enable 1"
	resumes "$AGAIN"
	all_live_in $((AGAIN * 3))
	is "what the server counts" "$(remote "cat $D/server/accounts")" "$was"
	finish
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

# The server's network card is replaced: its address is now at another link layer address. The core
# tells that to each connection which has the old one (UNREACHABLE). Whether it is lost by that or
# not, no I/O fails.
other_card() {
	! uml || skip "User Mode Linux does not change it while the link is up"
	local trace=/run/trace old new=02:00:00:12:34:56
	[ -e $trace/events ] || { mkdir -p $trace && mount -t tracefs tracefs $trace; } || skip "the kernel has no tracefs"
	[ -e $trace/events/rdma_cma ] || skip "the kernel does not trace rdma_cm"
	start 0
	old=$(remote 'cat /sys/class/net/"$(rxe_netdev)"/address')
	echo >$trace/trace
	must store $trace/events/rdma_cma/cm_event_handler/enable 1
	must remote "sysctl -qw net.ipv4.conf.\"\$(rxe_netdev)\".arp_notify=1; ip link set \"\$(rxe_netdev)\" address $new"
	wait_for 30 grep -q UNREACHABLE $trace/trace || bad "the core has not noticed: $(ip neigh)"
	resumes "$AGAIN"
	sleep 2
	must remote "ip link set \"\$(rxe_netdev)\" address $old"
	resumes "$AGAIN"
	store $trace/events/rdma_cma/cm_event_handler/enable 0
	finish
}

# Again and again, before the one before has settled.
storm_of_cuts() {
	local i
	start 0
	for ((i = 0; i < 10; i++)); do
		must net cut 0
		sleep 0.$((RANDOM % 9 + 1))
		must net pass 0
		sleep $((RANDOM % 2)).$((RANDOM % 10))
	done
	resumes "$AGAIN"
	finish
}

# --- the server forgets all -----------------------------------------------------------------------

server_dies() { WHILE=1; forgets 0 "must server_off" "must server_on; offer_again"; }
server_reloads() { WHILE=1; forgets 0 "must remote 'clean; remove_module'" "must remote load_module; offer_again"; }
export_disabled() { forgets 0 "within 10 must remote 'store $C/exports/e/enable 0'" "must remote 'store $C/exports/e/enable 1'"; }

# What a server with a cache has answered and not flushed may be gone: every flush says so until
# nobody has the disk open any more.
cached_map() {
	agent_only
	needs_module null_blk dm_mod dm_flakey
	SECTORS=$(($1 << 11))
	back "dm_disk cached \"0 $SECTORS linear \$(null_disk fbc $1 cache_size=1) 0\""
	must serve_block e "$BACK" "uuid=${UUID[server]}"
	must map m e
}
# cached_table TARGET...: what that device does from now on.
cached_table() { must remote "dmsetup reload farblk-cached --table '0 $SECTORS $*' && dmsetup resume farblk-cached"; }
cached() {
	cached_map 4
	must direct_write /dev/zero "$DEV" count=1
	must sync "$DEV"
	reloaded
	ends "a flush of nothing" OK sync "$DEV"
	must direct_write /dev/zero "$DEV" count=1
	reloaded
	ends "the flush of what may be gone" EIO sync "$DEV"
	ends "the one after it" OK sync "$DEV"
	# Who closes the disk without a flush leaves it to the next one.
	exec 7<"$DEV"
	must direct_write /dev/zero "$DEV" count=1
	reloaded
	exec 7<&-
	ends "the flush of who opens the disk then" EIO sync "$DEV"
	ends "the last one" OK sync "$DEV"
	must unmap m
}

# Everybody who has the disk open hears of it, through whichever CPU.
two_users() {
	local cpu
	cached_map 4
	exec 7<"$DEV" 8<"$DEV"
	must direct_write /dev/zero "$DEV" count=1
	reloaded
	for ((cpu = 0; cpu < $(nproc); cpu++)); do
		ends "a flush from CPU $cpu" EIO taskset -c $cpu sync "$DEV"
		ends "the one after it" EIO taskset -c $cpu sync "$DEV"
	done
	exec 7<&-
	ends "a flush while the second user has the disk open" EIO sync "$DEV"
	exec 8<&-
	ends "a flush when nobody has" OK sync "$DEV"
	must unmap m
}

# Two file systems on one disk: neither of them syncs with success.
two_filesystems() {
	local n
	needs sfdisk mkfs.ext4
	needs_own_module ext4
	cached_map 96
	printf 'label: gpt\nstart=2048,size=65536\nstart=67584,size=65536\n' | sfdisk -q "$DEV" >/run/sfdisk 2>&1 || die "sfdisk: $(cat /run/sfdisk)"
	trap 'umount -q /run/mnt/1 /run/mnt/2 || true' EXIT
	for n in 1 2; do
		wait_for 20 test -b "$(part $n)" || die "no $(part $n)"
		# Initialising a table later would flush it within 5 s, and the files with it.
		must mkfs.ext4 -q -E lazy_itable_init=0 "$(part $n)"
		mkdir -p /run/mnt/$n
		must mount -o commit=900 "$(part $n)" /run/mnt/$n
		must dd if=/dev/urandom of=/run/mnt/$n/file bs=64k count=4 oflag=direct status=none
	done
	reloaded
	for n in 1 2; do
		outcome sync -f /run/mnt/$n
		note "file system $n: $GOT"
		[ "$GOT" != OK ] || bad "file system $n is synced"
	done
	ends "a flush while both are mounted" EIO sync "$DEV"
	must umount /run/mnt/1
	ends "a flush while the second one is" EIO sync "$DEV"
	must umount /run/mnt/2
	ends "a flush when none is" OK sync "$DEV"
	# Exit code 1: they were marked as having had errors, and are not any more.
	for n in 1 2; do fsck.ext4 -fp "$(part $n)" >/run/fsck || [ $? = 1 ] || wrong "fsck: $(</run/fsck)"; done
	must unmap m
}
# reloaded: the server's module is, with the same export of the same disk. That could not be flushed
# before: otherwise the clients would have been told that it was.
reloaded() {
	cached_table flakey /dev/fbc 0 0 60 1 error_writes
	must remote "for o in exports/e ports/p; do store $C/\$o/enable 0; rmdir $C/\$o; done; remove_module && load_module"
	cached_table linear /dev/fbc 0
	must serve_block e "$BACK" "uuid=${UUID[server]}"
	all_live_in "$AGAIN"
}

# --- the time for which I/O waits -----------------------------------------------------------------

# I/O fails after that time, not before; the path comes back by itself, and what was complete is
# there.
no_path_timeout() {
	local begin ms
	start 0 -- no_path_timeout_ms=4000
	begin=$(now_ms)
	must net cut 0
	until grep -q . <(errno_of direct_read "$DEV" /dev/null bs=4k count=1 | grep -v OK); do sleep 0.2; done
	ms=$(($(now_ms) - begin))
	note "the first error after $ms ms: $(states)"
	[ $ms -ge 4000 ] || bad "I/O failed too early"
	[ $ms -le $((9000 * ${FARBLK_PATIENCE:-1})) ] || bad "I/O failed too late"
	is state "$(map_of state)" failed
	within 5 dead_read || bad "I/O does not fail at once"
	must net pass 0
	all_live_in "$AGAIN"
	resumes 5
	stamp_off 20
	must unmap m
}

fails_at_once() {
	start 0 -- no_path_timeout_ms=0
	must net cut 0
	wait_for 20 dead_read || bad "I/O waits: $(states)"
	must net pass 0
	all_live_in "$AGAIN"
	stamp_off 20
	must unmap m
}

waits_for_ever() {
	start 0 -- no_path_timeout_ms=-1
	WHILE=15
	survives "must net cut 0" "must net pass 0"
}

# A map without a path is removed as any other.
removed_meanwhile() {
	start 0
	must net cut 0
	sleep 3
	ends "enable=0 of an open disk" EBUSY store "$C/maps/m/enable" 0
	within 15 must store "$C/maps/m/enable" force
	touch /run/stamp.stop
	wait_for 30 stamp_ended || bad "I/O hangs after force"
	unharmed
	must net pass 0
	must map_rm m
}

# --- the export becomes somebody else's -----------------------------------------------------------

# The other one is the server itself. It has to wait for its turn, and what was on its way before
# does not land on what it writes.
evicted() {
	local other
	start 0 -- no_path_timeout_ms=1000 heartbeat_ms=500
	must net hold 0 client server
	must net cut 0 server client
	sleep 2
	must remote "map_make m e"
	is "the other one at once" "$(remote "errno_of store $C/maps/m/enable 1")" EBUSY
	wait_for 40 remote "store $C/maps/m/enable 1 2>/dev/null" || die "the export does not become free"
	other="DEV=/dev/\$(show $C/maps/m/device)"
	must remote "$other; random /run/new $USED; direct_write /run/new \$DEV"
	must net release 0 client server
	must net pass 0
	wait_for 40 map_is evicted || bad "not evicted: $(states)"
	wait_for 20 dead_read || bad "an evicted map reads"
	touch /run/stamp.stop
	wait_for 30 stamp_ended || die "stamp does not end"
	unharmed
	must remote "$other; direct_read \$DEV /run/back count=$USED"
	remote "cmp /run/new /run/back" || wrong "the server reads other data"
	must remote "unmap m"
	must unmap m force
}

# The same, and then the server begins anew and knows nothing of it. The map that lost its place
# comes first, and does not get in.
forgotten() {
	start 0 -- no_path_timeout_ms=1000 heartbeat_ms=500
	must net cut 0
	sleep 2
	must remote "map_make m e"
	wait_for 40 remote "store $C/maps/m/enable 1 2>/dev/null" || die "the export does not become free"
	must remote "DEV=/dev/\$(show $C/maps/m/device); random /run/new $USED; direct_write /run/new \$DEV; unmap m"
	must remote 'clean; remove_module'
	must remote load_module
	offer_again
	must net pass 0
	wait_for 40 map_is evicted || bad "not evicted: $(states)"
	note "$(states)"
	wait_for 20 dead_read || bad "an evicted map reads"
	touch /run/stamp.stop
	wait_for 30 stamp_ended || die "stamp does not end"
	unharmed
	must unmap m force
}

# A restart that is planned: the registration is taken along, and nobody is evicted, however long it
# takes.
planned() {
	local key
	start 0 -- no_path_timeout_ms=1000 heartbeat_ms=500
	must remote "store $C/exports/e/enable 0"
	key=$(remote "show $C/exports/e/registration")
	must remote 'clean; remove_module'
	# Longer than the map's lease.
	sleep $((10 * ${FARBLK_PATIENCE:-1}))
	must remote load_module
	must remote "$OFFER registration=$key"
	all_live_in "$AGAIN"
	resumes "$AGAIN"
	touch /run/stamp.stop
	wait_for 30 stamp_ended || die "stamp does not end"
	unharmed
	must unmap m
}

both network_cut "no packet for 5 s"
both one_way_cut "no packet from the server for 5 s"
both long_cut "no packet for 15 s"
both storm_of_cuts "cut after cut"
both server_link_down "the server's link goes down and up"
both own_link_down "the client's link goes down and up"
both own_device_removed "the client's RDMA device goes and comes"
both server_device_removed "the server's RDMA device goes and comes"
both server_frozen "the server freezes for 8 s"
both port_disabled "the port is disabled and enabled"
scenario shorter_queues "paths that got shorter queues come back with them"
both path_replaced "another path takes the place of the last one"
scenario other_card "the server's link layer address changes, and back"
both export_disabled "the export is disabled and enabled"
both server_reloads "the server's module goes and comes"
both server_dies "the server dies and boots"
scenario cached "a flush fails that covers what a server's cache has lost"
scenario two_users "everybody who has the disk open hears of that"
scenario two_filesystems "so do two file systems on it"
both no_path_timeout "I/O fails when it has waited for no_path_timeout_ms"
both fails_at_once "it does so at once with 0"
both waits_for_ever "it waits for ever with -1"
both removed_meanwhile "the map is removed while it has no path"
both evicted "another host takes the export"
scenario forgotten "another host had it, and the server has forgotten that"
scenario planned "the server restarts and is told whose the export was"
run_scenarios
