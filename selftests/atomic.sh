#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Atomic writes reach the server's device as such, and whole.
. "$(dirname "$0")/lib.sh"
T=/sys/kernel/tracing

start() {
	not_local
	needs python3
	needs_module scsi_debug
}
atomic() { python3 "$HERE/atomic.py" "$@"; }
# sizes: of the device of the server, or of DEVICE: the smallest atomic write, the largest one, and
# the boundary.
sizes() { echo "$(queue_file "$1" atomic_write_unit_min_bytes) $(queue_file "$1" atomic_write_unit_max_bytes) $(queue_file "$1" atomic_write_boundary_bytes)"; }

# watch DEVICE: the server notes each request that the device gets from now on. A second call
# forgets those before. watched: a line of each write: "FLAGS SECTORS".
watch() { must remote "$(declare -f trace_device); T=$T; trace_device $1"; at_exit "remote 'echo 0 >$T/events/block/block_rq_issue/enable'"; }
trace_device() {
	mounted $T || mount -t tracefs none $T
	local dev event=$T/events/block/block_rq_issue
	dev=$(<"/sys/class/block/${1##*/}/dev")
	echo "dev == $((${dev%:*} << 20 | ${dev#*:}))" >$event/filter && echo 1 >$event/enable && : >$T/trace
}
watched() { remote "sed -n 's/.* block_rq_issue: [0-9,]* \(W[A-Z]*\) .* + \([0-9]*\) .*/\1 \2/p' $T/trace"; }
needs_trace() { remote "mounted $T || mount -t tracefs none $T 2>/dev/null; [ -d $T/events/block/block_rq_issue ]" || skip "the server's kernel does not trace requests"; }

limits() {
	start
	disk_of "scsi_disk 16 atomic_wr=1"
	is "limits" "$(sizes "$DEV")" "1024 65536 0"
	is "limits on the server" "$(remote "$(declare -f sizes); sizes $BACK")" "1024 65536 0"
	is "what statx says" "$(atomic limits "$DEV")" "1024 65536"
	must unmap m
	clean_all
	# More than the block layer takes of any memory at once.
	disk_of "scsi_disk 16 atomic_wr=1 atomic_wr_max_length=4096"
	is "large ones" "$(sizes "$DEV")" "1024 524288 0"
	is "one of 512 KiB" "$(atomic write "$DEV" 524288 524288)" OK
	must unmap m
	clean_all
	disk_of "scsi_disk 16"
	is "none" "$(sizes "$DEV")" "0 0 0"
	is "what statx says of none" "$(atomic limits "$DEV")" "0 0"
	is "a write where there is none" "$(atomic write "$DEV" 0 4096)" EOPNOTSUPP
	must unmap m
}

reaches() {
	local size
	start
	needs_trace
	disk_of "scsi_disk 16 atomic_wr=1"
	# In the message of the command, and fetched.
	for size in 1024 4096 8192 32768 65536; do
		watch "$BACK"
		is "a write of $size" "$(atomic write "$DEV" $((4 * size)) $size)" OK
		is "on the server" "$(watched | sed 's/^W.*U.* /atomic /')" "atomic $((size >> 9))"
		same_data "what is there" "$(remote "dd if=$BACK iflag=direct bs=$size skip=4 count=1 status=none | sha256sum")" \
			"$(dd if="$DEV" iflag=direct bs=$size skip=4 count=1 status=none | sha256sum)"
	done
	watch "$BACK"
	must direct_write /dev/zero "$DEV" bs=4k count=1
	is "a plain write" "$(watched | sed 's/^W.*U.* /atomic /; s/^W.* /plain /')" "plain 8"
	watch "$BACK"
	# Too small, too large, not where it may be.
	is "half a unit" "$(atomic write "$DEV" 0 512)" EINVAL
	is "more than the largest" "$(atomic write "$DEV" 0 131072)" EINVAL
	is "no power of two" "$(atomic write "$DEV" 0 12288)" EINVAL
	is "a place within a unit" "$(atomic write "$DEV" 2048 4096)" EINVAL
	is "what the server got of those" "$(watched)" ""
	must unmap m
}

# Requests of one batch are merged on the client, and are atomic on the server nevertheless.
merged() {
	local before writes
	start
	needs_trace
	disk_of "scsi_disk 16 atomic_wr=1"
	watch "$BACK"
	before=$(io "$DEV" writes)
	is "a batch" "$(atomic batch "$DEV" 8192 8192 32)" OK
	writes=$(($(io "$DEV" writes) - before))
	[ $writes -lt 32 ] || bad "nothing was merged: $writes writes"
	is "sectors that were not written at once" "$(watched | awk '$1 !~ /U/ || $2 > 128')" ""
	is "sectors" "$(watched | awk '{n += $2} END {print n}')" 512
	must unmap m
}

# Over what has stripes, what is merged must not cross their ends.
striped() {
	local max
	start
	needs_module dm_mod
	disk_of "dm_disk striped \"0 16384 striped 2 16 \$(d=\$(scsi_disk 16 atomic_wr=1); echo \$d) 0 \$(scsi_name) 8192\""
	max=$(remote "$(declare -f sizes); sizes $BACK")
	is "limits on the server" "$max" "1024 8192 0"
	is "limits, with the stripes as boundary" "$(sizes "$DEV")" "1024 8192 8192"
	is "a batch across stripes" "$(atomic batch "$DEV" 4096 4096 31)" OK
	must unmap m
	clean_all
	# One that begins in the middle of a unit.
	disk_of "dm_disk odd \"0 16384 linear \$(scsi_disk 16 atomic_wr=1) 1\""
	is "limits of an odd part" "$(sizes "$DEV")" "0 0 0"
	is "a write to an odd part" "$(atomic write "$DEV" 0 4096)" EOPNOTSUPP
	must unmap m
}

# What is protected has bounce buffers of 128 KiB.
protected() {
	start
	needs_trace
	back "scsi_disk 16 atomic_wr=1 atomic_wr_max_length=1024"
	must serve_block e "$BACK" protection=crc32c
	must map m e protection=crc32c
	is "limits" "$(sizes "$DEV")" "1024 131072 0"
	watch "$BACK"
	is "a write of 128 KiB" "$(atomic write "$DEV" 131072 131072)" OK
	is "on the server" "$(watched | sed 's/^W.*U.* /atomic /')" "atomic 256"
	is "a write of 256 KiB" "$(atomic write "$DEV" 0 262144)" EINVAL
	must unmap m
}

# The path is lost and comes back under atomic writes: those that were under way are sent again, and
# each is whole.
lost() {
	local n pid sent_again
	start
	needs_trace
	# A write is under way nearly all the time.
	disk_of "scsi_disk 16 atomic_wr=1 delay=5"
	rm -f /run/stop
	at_exit "touch /run/stop"
	must dd if=/dev/zero of="$DEV" bs=1M count=2 oflag=direct status=none
	watch "$BACK"
	n=$(io "$DEV" writes)
	atomic storm "$DEV" 32768 32 /run/stop >/run/storm &
	pid=$!
	wait_for 60 has_written "$n" || die "there is no write"
	for n in 1 2 3; do
		sleep 0.5
		must remote "store $C/ports/p/enable 0"
		wait_for 20 map_is reconnecting || bad "the map does not notice"
		must remote "store $C/ports/p/enable 1"
		wait_for 20 map_is live || bad "the map does not come back"
	done
	sleep 0.5
	touch /run/stop
	wait $pid
	n=$(</run/storm)
	[[ $n =~ ^[0-9]+$ ]] && [ "$n" -gt 0 ] || bad "the writes end with '$n'"
	is "requests that were not atomic, or not whole" "$(watched | awk '$1 !~ /U/ || $2 != 64' | head -n 3)" ""
	[ "$(watched | wc -l)" -ge "$n" ] || bad "$(watched | wc -l) requests for $n writes"
	is "units that are torn" "$(atomic torn "$DEV" 32768 32)" 0
	sent_again=$(awk '$1 == "retries" {print $2}' "$D/maps/m/stats")
	must unmap m
	[ "$sent_again" -gt 0 ] || skip "no write was under way when the path was lost"
}
has_written() { [ "$(io "$DEV" writes)" -gt "$1" ]; }
map_is() { [ "$(show "$C/maps/m/state")" = "$1" ]; }

scenario limits "the limits of atomic writes are those of the device"
scenario reaches "atomic writes are so on the server's device, small and large"
scenario merged "those that are merged are still atomic"
scenario striped "a striped device, and one that begins in a unit"
scenario protected "atomic writes with protection"
scenario lost "a path is lost under atomic writes, and each is whole"
run_scenarios
