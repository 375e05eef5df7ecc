#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# An md RAID1 of two maps from two servers: one of them dies, I/O goes on; it comes back, and the
# mirror is made whole.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
MD=md9
TOLERATE=1

# leg NAME SERVER: a map of that server's export.
leg() {
	SERVER=$2 must remote "tolerant on; loaded || load_module"
	SERVER=$2 offer 0
	must mkdir "$C/maps/$1"
	must settings "$C/maps/$1" export=e no_path_timeout_ms=2000
	must path_add "$1" a "$(address "$2")"
	must map_on "$1"
}
disk_of_leg() { show "$C/maps/$1/device"; }
md() { show "/sys/block/$MD/md/$1"; }
set_md() { must store "/sys/block/$MD/md/$1" "$2"; }

# The array has no metadata: the kernel's own files make and change it.
assemble() {
	local slot=0 d
	needs_own_module raid1
	must store /sys/module/md_mod/parameters/new_array $MD
	set_md metadata_version none
	set_md raid_disks 2
	set_md level raid1
	for d; do
		set_md new_dev "$(show "/sys/class/block/$d/dev")"
		set_md "dev-$d/slot" $((slot++))
	done
	set_md component_size $((SIZE << 10))
	# Both are empty.
	set_md resync_start none
	set_md array_state active
	DEV=/dev/$MD
	wait_for 5 test -b "$DEV" || die "no $DEV"
}
faulty() { grep -q faulty "/sys/block/$MD/md/dev-$1/state"; }
checked() { [ "$(md last_sync_action)" = check ] && whole; }
whole() { [ "$(md sync_action)" = idle ] && [ "$(md degraded)" = 0 ]; }

# server_dies_and_returns SERVER LEG
server_dies_and_returns() {
	local disk
	disk=$(disk_of_leg "$2")
	SERVER=$1
	must server_off
	wait_for 60 faulty "$disk" || die "md does not notice: $(cat /proc/mdstat)"
	resumes 10
	sleep 2
	must server_on
	offer 0
	wait_for "$AGAIN" leg_is_live "$2" || die "$2 is $(show "$C/maps/$2/state")"
	is "the disk of $2" "$(disk_of_leg "$2")" "$disk"
	SERVER=server
	set_md "dev-$disk/state" remove
	set_md new_dev "$(show "/sys/class/block/$disk/dev")"
	# It may have begun by itself.
	store "/sys/block/$MD/md/sync_action" recover 2>/dev/null
	wait_for 120 whole || die "no resync: $(cat /proc/mdstat)"
	note "$(tr '\n' ' ' </proc/mdstat)"
}
leg_is_live() { [ "$(show "$C/maps/$1/state")" = live ]; }
# finish and resumes show the states of map m; here there is none.
states() { local m; for m in "$C"/maps/*/; do printf '%s %s %s; ' "$(basename "$m")" "$(show "$m/state")" "$(show "$m/last_error")"; done; cat /proc/mdstat; }

mirror() {
	agent_only
	[[ ,$ROLES, == *,second,* ]] || skip "there is no second server"
	leg one server
	leg two second
	assemble "$(disk_of_leg one)" "$(disk_of_leg two)"
	trap take_apart EXIT
	stamp_on --size $USED
	server_dies_and_returns server one
	# What the first one has now is all there is.
	server_dies_and_returns second two
	stamp_off 60
	[ "$(stamped read_errors)$(stamped write_errors)" = 00 ] || bad "I/O errors: $(stamped last_error)"
	note "longest stall: $(stamped stall_ms) ms"
	set_md sync_action check
	wait_for 120 checked || die "no check: $(cat /proc/mdstat)"
	is "sectors that differ" "$(md mismatch_cnt)" 0
}
take_apart() {
	touch /run/stamp.stop
	wait_for 20 stamp_ended
	set_md array_state clear
	must unmap one
	must unmap two
	SERVER=second must remote 'clean; remove_module; ! kmemleak_is_on || sleep 6'
	text=$(SERVER=second remote leaks) && bad "not freed by the second server:"$'\n'"$text"
	SERVER=second remote lockdep_is_on || bad "the second server's lockdep is off"
}

scenario mirror "either server dies and comes back under I/O"
run_scenarios
