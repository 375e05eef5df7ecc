#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Loading and unloading the module, on one host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE

# one_round: all there is, once: port, export, map, 4 KiB of I/O, and back.
one_round() {
	must port_add p "$FARBLK_SERVER"
	must export_ram e 8M
	must map m e
	must direct_write /run/page "$DEV" bs=4k count=1 seek=77
	must direct_read "$DEV" /run/back bs=4k count=1 skip=77
	cmp /run/page /run/back || wrong "what was read is not what was written"
	must unmap m
	must store "$C/exports/e/enable" 0
	must rmdir "$C/exports/e"
	must store "$C/ports/p/enable" 0
	must rmdir "$C/ports/p"
}

# A kernel with kmemleak is slow, but finds what is lost once, when the module has gone: see unload.
ROUNDS=50 IO_EACH=4
! kmemleak_is_on || ROUNDS=20 IO_EACH=1
! is_short || ROUNDS=14 IO_EACH=4

many_times() {
	local i free slabs free_then slabs_then
	head -c 4096 /dev/urandom >/run/page
	for ((i = 0; i < ROUNDS; i++)); do
		loaded || must load_module
		[ $((i % IO_EACH)) != 0 ] || one_round
		must rmmod farblk
		[ ! -e "$C" ] || bad "$C is still there"
		wait_for 20 nothing_left || { wrong "round $i left: $(resources)"; exit 1; }
		# The first rounds fill the kernel's own caches.
		[ $i != 9 ] || { free=$(memory); slabs=$(slab); }
	done
	free_then=$(memory) slabs_then=$(slab)
	note "in the last $((ROUNDS - 10)) of $ROUNDS rounds: available memory $free -> $free_then KiB, slabs $slabs -> $slabs_then KiB"
	[ $((free - free_then)) -lt 2048 ] || wrong "available memory fell by $((free - free_then)) KiB"
	[ $((slabs_then - slabs)) -lt 1024 ] || wrong "slabs grew by $((slabs_then - slabs)) KiB"
	must load_module
}
nothing_left() { [ "$(resources)" = "$before_load" ]; }

# kept REASON: rmmod is refused now.
kept() { rmmod farblk 2>/dev/null && die "rmmod worked although $1"; return 0; }

refused_while_enabled() {
	must port_add p "$FARBLK_SERVER"
	kept "a port listens"
	must export_ram e 8M
	must store "$C/ports/p/enable" 0
	must rmdir "$C/ports/p"
	kept "an export is online"
	must port_add p "$FARBLK_SERVER"
	must map m e
	kept "a map is live"
	exec 5<"$DEV"
	kept "the disk is open"
	exec 5<&-
	must unmap m
	clean
	must rmmod farblk
	must load_module
}

# To remove the module while clients are connected, an administrator first disables the port and the
# export.
disabled_under_a_session() {
	must port_add p "$FARBLK_SERVER"
	must export_ram e 8M
	must map m e
	must within 10 store "$C/exports/e/enable" 0
	must within 10 store "$C/ports/p/enable" 0
	must within 10 unmap m force
	clean
	must rmmod farblk
	must load_module
}

# An exported device is removed while pages that others wrote to it are still dirty. Its remover
# writes them, from code of the module: the export cannot be disabled, nor the module removed,
# before the remover has left that code.
device_removed() {
	local remover
	needs_own_module null_blk
	# Each request takes 5 s.
	must null_disk fbn 8 irqmode=2 completion_nsec=5000000000 >/dev/null
	must export_block e /dev/fbn
	# Who closes a device last writes its pages first. That is not to be the export.
	exec 5</dev/fbn
	must dd if=/dev/zero of=/dev/fbn bs=4k count=1 conv=notrunc status=none
	store /sys/kernel/config/nullb/fbn/power 0 &
	remover=$!
	wait_for 30 grep -q unavailable "$C/exports/e/state" || bad "the export's state is $(<"$C/exports/e/state")"
	must store "$C/exports/e/enable" 0
	# A compiler may make a jump of the last call: then its caller's code is not returned to,
	# but nothing promises that.
	[[ $(cat /proc/$remover/stack 2>/dev/null) != *filemap*wait* ]] || bad "the remover still writes pages after enable=0"
	must rmdir "$C/exports/e"
	must rmmod farblk
	must wait $remover
	exec 5<&-
	must rmdir /sys/kernel/config/nullb/fbn
	must load_module
}

# To close a file of debugfs, the kernel may want what is in the module.
debugfs_file_open() {
	local i
	for i in 1 2 3; do
		exec 5<"$D/server/counters"
		if rmmod farblk 2>/dev/null; then
			! cat <&5 >/dev/null 2>&1 || bad "a file of a module that has gone can be read"
		fi
		exec 5<&-
		! loaded || must rmmod farblk
		must load_module
	done
}

# Another driver's symlink(2) looks at the module's directories while they come and go.
linked() {
	local i pid port=/sys/kernel/config/nvmet/ports/1
	needs python3
	needs_own_module nvmet
	must mkdir -p $port
	at_exit "rm -f /run/links /run/links.on; rmdir $port"
	touch /run/links
	python3 - /run/links $port/subsystems/link "$C" "$C/exports" "$C/maps" >/run/links.out <<-'END' &
		import errno, os, sys
		flag, link, *targets = sys.argv[1:]
		seen = 0
		open(flag + ".on", "w").close()
		while os.path.exists(flag):
		    for target in targets:
		        try:
		            os.symlink(target, link)
		        except OSError as error:
		            # nvmet has looked at it, and does not want it.
		            seen += error.errno == errno.EINVAL
		print(seen)
	END
	pid=$!
	wait_for 60 [ -e /run/links.on ] || die "it does not begin"
	for i in {1..10}; do
		must rmmod farblk
		must load_module
	done
	rm /run/links
	must wait $pid
	note "found $(</run/links.out) directories"
	[ "$(</run/links.out)" -gt 0 ] || bad "no directory was found"
}

loaded && rmmod farblk
have_rdma && modprobe -a rdma_cm configfs
before_load=$(resources)
scenario many_times "loads and unloads again and again, with I/O in between, and leaves nothing"
scenario refused_while_enabled "cannot be removed while something is enabled"
scenario disabled_under_a_session "can be removed after the server's side was disabled under a session"
scenario device_removed "can be removed while somebody removes a device that was exported"
scenario debugfs_file_open "a file of debugfs that is open keeps the module, or does without it"
scenario linked "can be removed while another driver's links look for its directories"
run_scenarios
