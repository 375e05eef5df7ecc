#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What a request costs: work requests (receives, too), doorbells, completions, interrupts and
# invalidations, counted after FARBLK_BUDGET_IOS requests (10000) of a kind, or a fourth of that if
# they are large, one at a time. One host: then 60,000 requests take a minute.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE FARBLK_SERVER
IOS=10000
! debug_kernel || IOS=50
IOS=${FARBLK_BUDGET_IOS:-$IOS}

# Per request, by design; doorbells are those of the send queue.
BUDGET="
client read_4k     work_requests 2 doorbells 1 completions 2 interrupts 1 invalidations 0
client write_4k    work_requests 2 doorbells 1 completions 2 interrupts 1 invalidations 0
client read_8k     work_requests 3 doorbells 1 completions 2 interrupts 1 invalidations 0
client read_128k   work_requests 3 doorbells 1 completions 2 interrupts 1 invalidations 0
client write_128k  work_requests 3 doorbells 1 completions 2 interrupts 1 invalidations 0
client flush       work_requests 2 doorbells 1 completions 2 interrupts 1 invalidations 0
client discard     work_requests 2 doorbells 1 completions 2 interrupts 1 invalidations 0
server read_4k     work_requests 2 doorbells 1 completions 2
server write_4k    work_requests 2 doorbells 1 completions 2
server read_8k     work_requests 3 doorbells 1 completions 2
server read_128k   work_requests 3 doorbells 1 completions 2
server write_128k  work_requests 3 doorbells 2 completions 3
server flush       work_requests 2 doorbells 1 completions 2
server discard     work_requests 2 doorbells 1 completions 2"

# counters SIDE: the lines of the map's queues, at the client and at the server.
counters() { case $1 in client) echo "$D/client/m/counters" ;; server) echo "$D/server/connections" ;; esac; }

# requests KIND: IOS of them.
requests() {
	local job=(fio "--name=$1" "--filename=$DEV" --direct=1 --ioengine=psync "--number_ios=$IOS" --io_size=2g --norandommap --randrepeat=1 --output=/run/fio.out)
	case $1 in
	read_4k) "${job[@]}" --rw=randread --bs=4k ;;
	read_8k) "${job[@]}" --rw=randread --bs=8k ;;
	write_4k) "${job[@]}" --rw=randwrite --bs=4k ;;
	read_128k) "${job[@]}" --rw=randread --bs=128k ;;
	write_128k) "${job[@]}" --rw=randwrite --bs=128k ;;
	discard) "${job[@]}" --rw=randtrim --bs=4k ;;
	flush) python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
for _ in range(int(sys.argv[2])):
	os.fsync(fd)' "$DEV" "$IOS" ;;
	esac
}

# counts KIND: each counter that has a budget: SIDE NAME BUDGET COUNT.
counts() {
	local side kind words
	while read -r side kind words; do
		[ "$kind" = "$1" ] || continue
		# shellcheck disable=SC2086
		set -- "$1" $words
		while [ $# -gt 1 ]; do
			echo "$side $2 $3 $(counter "$(counters "$side")" "$2" || echo none)"
			set -- "$1" "${@:4}"
		done
	done <<<"$BUDGET"
}

# of SIDE COUNTER COUNTS: one of the counts.
of() { awk -v s="$1" -v n="$2" '$1 == s && $2 == n {print $4}' <<<"$3"; }

# overtaken BEFORE AFTER: how often the client invalidated a region itself, because the answer was
# there before its request had completed. rdma_rxe acknowledges a message as late as that, now and
# then; it costs the client a work request, a doorbell and a completion. When it is more than one
# request in ten, the reason is another one.
overtaken() {
	local count=$(($(of client invalidations "$2") - $(of client invalidations "$1")))
	[ $((count * 10)) -le "$IOS" ] || count=0
	echo "$count"
}

# costs KIND: both sides keep to the budget.
costs() {
	local before after side name budget count late extra found=""
	not_local
	needs python3
	needs_module null_blk
	# What it costs does not depend on when a write is on the device.
	disk_of "null_disk fbn 64 cache_size=1 discard=1" queues=1
	before=$(counts "$1")
	must requests "$1"
	after=$(counts "$1")
	late=$(overtaken "$before" "$after")
	while read -r side name budget count; do
		[ "$count" != none ] || { bad "the $side does not count $name"; continue; }
		count=$((count - $(of "$side" "$name" "$before"))) extra=0
		case $side:$name in
		client:work_requests | client:doorbells | client:completions | client:invalidations) extra=$late ;;
		esac
		found+="$side $name $count, "
		is "$side: $name of $IOS" "$count" $((budget * IOS + extra))
	done <<<"$after"
	note "$found"
	must unmap m
}
read_4k() { costs read_4k; }
read_8k() { costs read_8k; }
write_4k() { costs write_4k; }
# These take long.
large() { [ "$IOS" -lt 1000 ] || IOS=$((IOS / 4)); costs "$1"; }
read_128k() { large read_128k; }
write_128k() { large write_128k; }
flush() { costs flush; }
discard() { costs discard; }

scenario read_4k "what a read of 4 KiB costs"
scenario read_8k "what a read of 8 KiB costs, whose data do not travel with the answer"
scenario write_4k "what a write of 4 KiB costs"
scenario read_128k "what a read of 128 KiB costs"
scenario write_128k "what a write of 128 KiB costs"
scenario flush "what a flush costs"
scenario discard "what a discard costs"
run_scenarios
