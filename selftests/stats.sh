#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The counters and histograms of maps, and of exports of block devices: they add up to the I/O that
# was done, and survive the loss of a path.
. "$(dirname "$0")/lib.sh"

MAP_FILES=$D/maps/m
EXPORT_FILES=$D/exports/e
COMMON="reads writes flushes discards write_zeroes read_bytes write_bytes errors"

# value NAME: of the last text in STATS. take map|export: reads the counters of one side into STATS,
# and checks their names and the permissions of the file.
value() { awk -v name="$1" '$1 == name {print $2}' <<<"$STATS"; }
take() {
	local names=$COMMON
	case $1 in
	map)
		STATS=$(show "$MAP_FILES/stats") LATENCY=$(show "$MAP_FILES/latency")
		is "mode of the map's files" "$(stat -c %a "$MAP_FILES"/* | sort -u)" 400
		names+=" retries one_sided in_flight reconnects failovers"
		;;
	export)
		STATS=$(remote "show $EXPORT_FILES/stats; echo; show $EXPORT_FILES/latency")
		LATENCY=${STATS#*$'\n\n'} STATS=${STATS%%$'\n\n'*}
		names+=" in_flight"
		;;
	esac
	is "names in stats of the $1" "$(awk '{printf "%s%s", sep, $1; sep = " "}' <<<"$STATS")" "$names"
	is "lines in latency of the $1" "$(awk '{printf "%s %d;", $1, NF - 1}' <<<"$LATENCY")" "read 32;write 32;flush 32;"
	is "reads in the histogram of the $1" "$(counted read 0 31)" "$(value reads)"
	is "writes in the histogram of the $1" "$(counted write 0 31)" "$(value writes)"
	is "flushes in the histogram of the $1" "$(counted flush 0 31)" "$(value flushes)"
}
# counted OP FIRST LAST: I/Os in these buckets.
counted() { awk -v op="$1" -v first="$2" -v last="$3" '$1 == op {for (i = first; i <= last; i++) sum += $(i + 2)} END {print sum + 0}' <<<"$LATENCY"; }

# begin: what follows is counted from here on. now map|export NAME COUNT...: so much more since
# then.
declare -A BEFORE
begin() {
	local side name
	BEFORE=()
	for side in ${SIDES:-map export}; do
		take "$side"
		while read -r name _; do BEFORE[$side-$name]=$(value "$name"); done <<<"$STATS"
	done
}
now() {
	local side=$1
	shift
	take "$side"
	while [ $# -gt 1 ]; do
		is "$1 of the $side" $(($(value "$1") - ${BEFORE[$side-$1]})) "$2"
		shift 2
	done
}

# reads COUNT KIB [SKIP]: that many, one at a time. writes: the same.
reads() { dd if="$DEV" of=/dev/null iflag=direct bs="$2K" count="$1" skip="${3:-0}" status=none; }
writes() { dd if=/dev/zero of="$DEV" oflag=direct conv=notrunc bs="$2K" count="$1" status=none; }
syncs() { local i; for ((i = 0; i < $1; i++)); do sync "$DEV" || return; done; }

cached_disk() { disk_of "null_disk fbn 64 cache_size=1 discard=1" heartbeat_ms=10000 "$@"; }

block() {
	local done="reads 150 writes 70 flushes 5 discards 3 read_bytes $((150 * 4096)) write_bytes $((70 * 131072)) errors 0 in_flight 0"
	not_local
	needs_module null_blk
	cached_disk
	begin
	must reads 150 4
	must writes 70 128
	must syncs 5
	# Without -f it looks for file systems first.
	for i in 1 2 3; do must blkdiscard -f -o $((i << 20)) -l 65536 "$DEV"; done
	# shellcheck disable=SC2086
	now map $done one_sided 0 retries 0 reconnects 0 failovers 0
	# shellcheck disable=SC2086
	now export $done
	must unmap m
	[ ! -e "$MAP_FILES" ] || bad "the files of the map outlive it"
	must remote "store $C/exports/e/enable 0"
	remote "[ ! -e $EXPORT_FILES ]" || bad "the files of the export outlive it"
	must remote "store $C/exports/e/enable 1"
	must map m e
	take map
	[ "$(value reads)" -lt 100 ] || bad "a map that is enabled again has counted $(value reads) reads"
}

ram() {
	local SIDES=map
	not_local
	must serve e 64M
	must map m e
	begin
	must reads 90 4
	must writes 40 16
	must blkdiscard -f -z -l 1M "$DEV"
	now map reads 90 writes 40 read_bytes $((90 * 4096)) write_bytes $((40 * 16384)) errors 0 in_flight 0
	[ "$(value write_zeroes)" -gt 0 ] || bad "write zeroes are not counted"
	is one_sided "$(value one_sided)" $(($(value reads) + $(value writes) + $(value write_zeroes)))
	remote "[ ! -e $EXPORT_FILES ]" || bad "an export of RAM has counters, which its server cannot know"
	must unmap m
}

# The connections go, and others come: on both sides the counters go on.
reconnect() {
	local port=$C/ports/p
	not_local
	needs_module null_blk
	cached_disk
	begin
	must reads 30 4
	must remote "store $port/enable 0"
	wait_for 30 map_is reconnecting || bad "the map does not notice"
	must remote "store $port/enable 1"
	wait_for 20 map_is live || bad "the map does not come back"
	must reads 12 4
	now map reads 42 read_bytes $((42 * 4096)) errors 0 reconnects 1 failovers 0 in_flight 0
	now export reads 42 read_bytes $((42 * 4096)) errors 0 in_flight 0
	must unmap m
}
map_is() { [ "$(show "$C/maps/m/state")" = "$1" ]; }

# The device takes 20 ms for each I/O, which is in bucket 15; a busy host adds some.
buckets() {
	local side
	not_local
	needs_module null_blk
	disk_of "null_disk fbn 64 irqmode=2 completion_nsec=20000000"
	begin
	must reads 25 4
	must writes 15 4
	for side in map export; do
		now $side reads 25 writes 15
		is "reads of the $side that took less than 16 ms" "$(counted read 0 14)" 0
		is "writes of the $side that took less than 16 ms" "$(counted write 0 14)" 0
		[ "$(counted read 15 16)" -ge 1 ] && [ "$(counted write 15 16)" -ge 1 ] || bad "none took 16 to 64 ms: $LATENCY"
		[ "$(counted read 15 20)" -ge 20 ] || bad "reads of the $side: $(grep ^read <<<"$LATENCY")"
		[ "$(counted write 15 20)" -ge 12 ] || bad "writes of the $side: $(grep ^write <<<"$LATENCY")"
	done
	note "$(grep -v flush <<<"$LATENCY")"
	must unmap m
}

in_flight() {
	local pids=() i
	not_local
	needs_module null_blk
	needs_module dm-mod
	disk_of 'n=$(null_disk fbn 64) && dm_disk hang "0 $(sectors "$n") linear $n 0"'
	at_exit 'remote "dmsetup resume farblk-hang 2>/dev/null"'
	must remote "dmsetup suspend --noflush --nolockfs farblk-hang"
	for i in 1 2 3; do
		reads 1 4 $((i * 100)) &
		pids+=($!)
	done
	wait_for 20 have_in_flight map 3 || bad "in_flight of the map is $(value in_flight)"
	wait_for 20 have_in_flight export 3 || bad "in_flight of the export is $(value in_flight)"
	must remote "dmsetup resume farblk-hang"
	wait "${pids[@]}"
	wait_for 20 have_in_flight map 0 || bad "in_flight of the map is $(value in_flight) at the end"
	wait_for 20 have_in_flight export 0 || bad "in_flight of the export is $(value in_flight) at the end"
	must unmap m
}
have_in_flight() { take "$1"; [ "$(value in_flight)" = "$2" ]; }

# An I/O that fails counts as an I/O and as an error, its bytes do not count.
errors() {
	not_local
	needs_module null_blk
	cached_disk
	begin
	must remote "store /sys/kernel/config/nullb/fbn/badblocks +800-807"
	reads 1 4 100 2>/dev/null && bad "a bad block can be read"
	must reads 2 4
	now map reads 3 read_bytes 8192 errors 1
	now export reads 3 read_bytes 8192 errors 1
	must unmap m
}

# Without the block layer's own statistics nobody else takes the time.
without_iostats() {
	not_local
	needs_module null_blk
	cached_disk
	store "/sys/block/${DEV##*/}/queue/iostats" 0
	begin
	must reads 20 4
	now map reads 20
	is "reads of more than 17 s" "$(counted read 25 31)" 0
	must unmap m
}

# --- identity -------------------------------------------------------------------------------------

# listen FILE: what uevents of disks say, one on each line, until the scenario ends.
listen() {
	: >"$1"
	python3 -c 'import socket, sys
s = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)
s.bind((0, 1))
out = open(sys.argv[1], "a", buffering=1)
print("listening", file=out)
while True:
	print(s.recv(65536).replace(b"\0", b" ").decode(errors="replace"), file=out)' "$1" &
	at_exit "kill $!"
	wait_for 30 grep -q listening "$1" || die "nobody listens to uevents"
}

# The disk tells the UUID of the export, the same whenever it is mapped.
identity() {
	local uuid=6f3b1c52-0a0b-4d5b-9a55-0d3c6f1e2a11 events=/run/farblk-uevents wwid
	not_local
	needs python3
	must serve e 16M "uuid=$uuid"
	listen $events
	must map m e
	wwid=$(show "/sys/block/${DEV##*/}/wwid")
	is wwid "$wwid" "uuid.$uuid"
	wait_for 20 grep -q " FARBLK_STATE=live " $events || bad "no uevent says that the map is live"
	grep " FARBLK_STATE=live " $events >/run/farblk-live
	grep -q "^change@.* FARBLK_MAP=m " /run/farblk-live || bad "no name: $(cat /run/farblk-live)"
	grep -q " FARBLK_UUID=$uuid " /run/farblk-live || bad "no UUID: $(cat /run/farblk-live)"
	must unmap m
	must map n e
	is "wwid of another map" "$(show "/sys/block/${DEV##*/}/wwid")" "$wwid"
	# udev asks the disk of which map a partition is: it must have been told that before.
	printf '\0\0\0\0\203\0\0\0\0\10\0\0\0\10\0\0' | dd of="$DEV" bs=1 seek=446 conv=notrunc status=none
	printf '\125\252' | dd of="$DEV" bs=1 seek=510 conv=notrunc,fsync status=none
	must unmap n
	: >$events
	must map n e
	wait_for 20 grep -q "^add@.*/${DEV##*/}p1 " $events || bad "no uevent says that there is a partition"
	is "uevents" "$(awk '/^add@.*farblk[0-9]+ / { print "disk" } / FARBLK_STATE=live / { print "live" }
		/^add@.*farblk[0-9]+p1 / { print "partition" }' $events | xargs)" "disk live partition"
	must unmap n
}

# --- tracepoints ----------------------------------------------------------------------------------

TRACING=/sys/kernel/tracing
# trace on|off, traced PATTERN: lines that match.
trace() {
	case $1 in
	on)
		mounted $TRACING || mount -t tracefs none $TRACING 2>/dev/null
		[ -d $TRACING/events/farblk ] || skip "the kernel has no tracepoints"
		at_exit "trace off"
		: >$TRACING/trace
		store $TRACING/events/farblk/enable 1
		;;
	off) store $TRACING/events/farblk/enable 0 ;;
	esac
}
traced() { grep -cE "$1" $TRACING/trace; }

tracepoints() {
	local dev name
	not_local
	needs_module null_blk
	cached_disk
	dev=$(show "/sys/block/${DEV##*/}/dev")
	must trace on
	must reads 7 4 8
	must sync "$DEV"
	for name in "submit: dev=${dev/:/,} queue=[0-9]* tag=[0-9]* op=read sector=[0-9]* bytes=4096" "answer: dev=${dev/:/,} .* op=read status=0"; do
		is "events 'farblk_$name'" "$(traced "farblk_$name")" 7
	done
	is "flushes that were submitted" "$(traced "farblk_submit: .* op=flush ")" 1
	[ "$(traced "farblk_post: dev=${dev/:/,} .* path=[0-7]$")" -ge 8 ] || bad "not every request was posted"
	is "the first sector" "$(grep -m 1 -o 'sector=[0-9]*' $TRACING/trace)" sector=64
	must remote "store $C/ports/p/enable 0"
	wait_for 30 map_is reconnecting || bad "the map does not notice"
	must remote "store $C/ports/p/enable 1"
	wait_for 20 map_is live || bad "the map does not come back"
	for name in hold flow; do
		[ "$(traced "farblk_mode: map=m mode=$name$")" -ge 1 ] || bad "no change to $name: $(grep farblk_mode $TRACING/trace)"
	done
	must trace off
	: >$TRACING/trace
	must reads 3 4
	is "events while tracing is off" "$(traced farblk_)" 0
	must unmap m
}

# One of two paths goes: the map asks on the other one that the server fence it.
fence() {
	not_local
	needs_module null_blk
	back "null_disk fbn 64 cache_size=1 discard=1"
	must serve_block e "$BACK"
	must remote "mkdir $C/ports/q && settings $C/ports/q addr=$FARBLK_SERVER:7421 enable=1"
	must map_make m e policy=round-robin heartbeat_ms=10000
	must path_add m b "$FARBLK_SERVER:7421"
	must map_on m
	wait_for 20 path_is b live || bad "the second path is not up"
	must trace on
	begin
	must reads 10 4
	must remote "store $C/ports/q/enable 0"
	wait_for 30 path_lost b || bad "the second path is still up"
	must reads 10 4
	wait_for 30 traced 'farblk_fence: map=m via=[0-7] path=[0-7] epoch=[0-9]+ error=0$' >/dev/null ||
		bad "no fence was asked for: $(tail -n 20 $TRACING/trace)"
	now map reads 20 errors 0 failovers 1
	now export reads 20
	[ "$(traced 'farblk_post: .* path=0$')" -ge 12 ] && [ "$(traced 'farblk_post: .* path=1$')" -ge 2 ] || bad "the paths were not taken in turn"
	must trace off
	must unmap m
}
path_lost() { ! path_is "$1" live; }
path_is() { [ "$(show "$C/maps/m/paths/$1/state")" = "$2" ]; }

scenario block "a map of a block export counts what its export counts, and what was done"
scenario ram "a map of RAM counts what it does by itself"
scenario reconnect "counters survive the loss of all connections"
scenario buckets "I/Os are in the bucket of the time that they took"
scenario in_flight "I/Os in flight are counted"
scenario errors "errors are counted"
scenario identity "the disk tells the UUID of the export, in sysfs and in uevents"
scenario tracepoints "requests and changes of the mode are traced"
scenario fence "a path breaks and another one takes its I/O"
scenario without_iostats "latencies are right without iostats"
run_scenarios
