#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# One I/O takes long on the server's device: it is waited for, the session stays, and other I/O does
# not feel it. FARBLK_SLOW_SECONDS is how long; a request is asked after when io_timeout_ms is over.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
SECONDS_SLOW=${FARBLK_SLOW_SECONDS:-60}
TIMEOUT=$((SECONDS_SLOW * 1000 / 4))

# slow_disk SECONDS: the last block of the disk, read or written, takes that long.
slow_disk() {
	local name end
	modprobe dm-delay
	name=$(null_disk slow $SIZE) && end=$(($(sectors "$name") - 8)) &&
		dm_disk slow "0 $end linear $name 0"$'\n'"$end 8 delay $name $end $(($1 * 1000))"
}

# slow_io COMMAND...: the last block's I/O takes as long as it takes, and stamp does not stand still
# meanwhile.
slow_io() {
	local begin ms pid reconnects
	agent_only
	needs_module dm-delay
	back "SIZE=$SIZE; $(declare -f slow_disk); slow_disk $SECONDS_SLOW"
	must serve_block e "$BACK"
	must map m e "io_timeout_ms=$TIMEOUT"
	reconnects=$(path_of a reconnects)
	stamp_on --size $USED
	begin=$(now_ms)
	"$@" &
	pid=$!
	wait_for $((SECONDS_SLOW * 2 + 10)) ended $pid || die "the slow I/O never ends: $(states)"
	wait $pid || bad "the slow I/O failed"
	ms=$(($(now_ms) - begin))
	note "the slow I/O took $ms ms"
	[ $ms -ge $((SECONDS_SLOW * 1000)) ] || bad "it was not slow"
	is state "$(map_of state)" live
	is reconnects "$(path_of a reconnects)" "$reconnects"
	stamp_off 20
	[ "$(stamped read_errors)$(stamped write_errors)" = 00 ] || bad "I/O errors: $(stamped last_error)"
	[ "$(stamped stall_ms)" -le $((2000 * ${FARBLK_PATIENCE:-1})) ] || bad "I/O stood still for $(stamped stall_ms) ms"
	[ "$(stamped slowest_ms)" -le $((SECONDS_SLOW * 1000 / 4)) ] || bad "another I/O took $(stamped slowest_ms) ms"
	must unmap m
}
last_block() { echo $((SIZE * 256 - 1)); }
slow_read() { slow_io read_last; }
slow_write() { slow_io write_last; }
read_last() { direct_read "$DEV" /dev/null bs=4k skip="$(last_block)" count=1; }
write_last() { direct_write /dev/zero "$DEV" bs=4k seek="$(last_block)" count=1; }

scenario slow_read "a read that takes long"
scenario slow_write "a write that takes long"
run_scenarios
