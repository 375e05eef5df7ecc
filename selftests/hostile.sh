#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A hostile peer can hurt only its own I/O: hostile.py breaks the protocol in all its parts, while a
# map of the same export, and of the same server, does verified I/O.
. "$(dirname "$0")/lib.sh"

violations() { remote "cat $COUNTERS" | awk '$1 == "violations" {print $2; found = 1} END {exit !found}'; }

# load [SECONDS [SIZES [IOPS]]]: verified I/O on DEV from now on, in its first 16 MiB. No request
# may take longer.
load() {
	fio --name=load --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bsrange="${2:-4k-64k}" --size=16m --iodepth=4 --rate_iops="${3:-100}" --time_based \
		--runtime=3600 --verify=crc32c --verify_fatal=1 --verify_backlog=16 --max_latency=$((${1:-10} * ${FARBLK_PATIENCE:-1}))s >/run/fio.out 2>&1 &
	FIO=$!
	at_exit "kill $FIO 2>/dev/null"
	wait_for 30 busy || die "fio does nothing: $(tail -n 3 /run/fio.out)"
}
busy() { [ "$(io "$DEV" writes)" -gt 0 ]; }

# start: one that is well behaved, and what else the hostile one may have. ADMIT are the hosts that
# have entries.
ADMIT=
start() {
	not_local
	needs python3
	needs_user_rdma
	needs_module null_blk
	back "null_disk fbn 32 blocksize=512"
	must serve_block e "$BACK" max_clients=1024
	must remote "for h in $ADMIT; do mkdir $C/exports/e/hosts/\$h && store $C/exports/e/hosts/\$h/access rw || exit; done"
	must map m e queues=2
	load "$@"
}

# hostile GROUP [SCRIPT]: the cases of that group, and what the server counts.
hostile() {
	local before after rc
	before=$(violations) || die "the server does not count violations in $COUNTERS"
	python3 "$HERE/${2:-hostile.py}" "$FARBLK_SERVER" "$1" 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	[ $rc != 4 ] || skip "user space has no RDMA"
	[ $rc = 0 ] || bad "${2:-hostile.py} $1 ends with $rc; the server has:"$'\n'"$(remote "cat $D/server/connections")"
	after=$(violations) || die "no violations any more"
	is "violations of the protocol" "violations $((after - before))" "$(tail -n 1 /run/hostile.out)"
}

# unharmed: the other one has gone on all the time, and the server has nothing of the hostile one
# any more.
unharmed() {
	local writes
	writes=$(io "$DEV" writes)
	wait_for 20 more_than "$writes" || bad "there is no I/O any more"
	kill -INT "$FIO" || bad "fio has ended"
	wait "$FIO"
	fio_worked
	is state "$(show "$C/maps/m/state")" live
	no_error maps/m
	wait_for 30 alone || bad "what the server still has:"$'\n'"$(remote "grep . $C/exports/*/clients; cat $D/server/connections")"
	must unmap m
}
more_than() { [ "$(io "$DEV" writes)" -gt "$1" ]; }
alone() { remote "awk '{n += \$1} END {exit n != 1}' $C/exports/*/clients && ! grep -qE 'host (hostile|silent)' $D/server/connections"; }

# block_exports: one where nobody may write, and one where the hostile host may not.
block_exports() {
	back "null_disk fbr 1 blocksize=512 discard=1"
	must serve_block ro "$BACK" read_only=1 max_clients=1024
	back "null_disk fbh 1 blocksize=512 discard=1"
	must serve_block host "$BACK" allow_any_host=0 max_clients=1024
	must remote "mkdir $C/exports/host/hosts/hostile && store $C/exports/host/hosts/hostile/access ro"
}
# slow_export: its device takes a third of a second for everything.
slow_export() {
	back "null_disk fbs 8 blocksize=512 irqmode=2 completion_nsec=300000000"
	must serve_block slow "$BACK" max_clients=1024
}

# many_maps: an export for many maps.
many_maps() {
	back "null_disk fbm 8 blocksize=512"
	must serve_block many "$BACK" max_clients=1024
	must remote "mkdir $C/exports/many/hosts/silent0 && store $C/exports/many/hosts/silent0/access rw"
}

connect() { start; hostile connect; unharmed; }
control() { start; block_exports; hostile control; unharmed; }
malformed() { start; hostile malformed; unharmed; }
refused_commands() { start; block_exports; hostile refused; unharmed; }
memory() { start; hostile memory; unharmed; }
stranger() { start; hostile stranger; unharmed; }
slow() { start; slow_export; hostile slow; unharmed; }
death() { start; slow_export; hostile death; unharmed; }
share() {
	ADMIT="$(show "$C/host_name") silent0"
	start
	many_maps
	hostile share
	unharmed
	note "accounts: $(remote "cat $D/server/accounts")"
}
ram() {
	start
	must remote "export_ram ram 1M max_clients=1024 && export_ram other 1M max_clients=1024"
	hostile ram
	unharmed
}

# Hosts that take all memory of the server that they can have, again and again, and let go of it
# only when the server gives up on them: a well-behaved one does not wait for that. silent: each of
# them has an entry. pretend: they are one that invents them, and the well-behaved one has an entry.
silent() {
	not_local
	ADMIT=$(echo silent{0..7})
	reload_server "load_module pool_size=$((4 << 20))"
	start
	hostile silent
	unharmed
}
pretend() {
	not_local
	ADMIT=$(show "$C/host_name")
	reload_server "load_module pool_size=$((4 << 20))"
	start
	hostile pretend
	unharmed
}

# large: the well-behaved one wants more than it has for itself, and so waits for memory that they
# have: the server does not wait until the HCA gives them up, and says so.
large() {
	local before
	not_local
	needs_hogs
	ADMIT=$(echo silent{0..7})
	reload_server "load_module pool_size=$((4 << 20))"
	start 60 128k-1m 10
	before=$(overdue)
	hostile large
	note "sessions that were overdue: $(($(overdue) - before))"
	more_overdue "$before" || bad "the server waits for the HCA"
	unharmed
	note "$(grep -E ' (lat|bw) ' /run/fio.out)"
}
needs_hogs() { [ "$PROVIDER" != siw ] || skip "with iWARP a host that does not receive loses its connection, and keeps no memory"; }
overdue() { remote "cat $COUNTERS" | awk '$1 == "overdue" {print $2}'; }
more_overdue() { [ "$(overdue)" -gt "$1" ]; }

# crawl: hosts that let go of their memory so slowly that the server waits for it, but that are not
# silent. storm: hosts that come, ask for all, and go. Neither keeps one waiting for long that wants
# more than it has for itself.
crawl() { slow_hosts crawl; }
storm() { needs_hogs; slow_hosts storm; }
slow_hosts() {
	not_local
	ADMIT=$(echo silent{0..7})
	reload_server "load_module pool_size=$((4 << 20))"
	start 20 128k-1m 10
	hostile "$1"
	unharmed
	note "$(grep -E ' (lat|bw) ' /run/fio.out)"
}
# modest: who is late once keeps its session, though a hog wants all of the memory.
modest() {
	local before
	not_local
	needs_hogs
	ADMIT=$(echo silent{0..1})
	reload_server "load_module pool_size=$((4 << 20))"
	start
	before=$(overdue)
	hostile modest
	is "sessions that were overdue" $(($(overdue) - before)) 0
	unharmed
}

# passing: what a host reads that fits its own memory does not wait for larger reads of its own.
passing() {
	not_local
	needs_hogs
	ADMIT=$(echo silent{0..4})
	reload_server "load_module pool_size=$((4 << 20))"
	start
	hostile passing
	unharmed
}

# halved: the memory that each of two hosts has for itself is half of what it could be, and half of
# that again, as there are no larger pieces of memory: less is better than none.
halved() {
	local faults=/sys/kernel/debug/fail_page_alloc own
	not_local
	remote "[ -d $faults ]" || skip "the kernel has no fault injection"
	needs python3
	needs_user_rdma
	ADMIT=silent0
	start
	is "own memory of the only host" "$(own)" 0
	# From 256 KiB on, in the tasks of the module alone: there are none of that size.
	must remote "settings $faults probability=100 interval=1 times=-1 verbose=0 task-filter=N ignore-gfp-wait=N min-order=6"
	at_exit "remote 'settings $faults probability=0'"
	hostile second
	is "own memory of the first host" "$(own)" $((128 << 10))
	must remote "settings $faults probability=0 min-order=1"
	unharmed
}
# own: the memory that the host of the map has for itself, in bytes.
own() { remote "cat $D/server/connections" | awk '{for (i = 1; i < NF; i++) if ($i == "own") {print $(i + 1); exit}}'; }

# flood: many ask for connections, and nobody knows what for. Who may log in is let in nevertheless,
# and what the server has for the others is bounded.
flood() {
	local before now start kib i
	not_local
	needs python3
	needs_user_rdma
	must serve e 8M
	must map_make m e
	rm -f /run/flood.*
	before=$(remote "$HAS")
	python3 "$HERE/hostile.py" "$FARBLK_SERVER" flood >/run/hostile.out 2>&1 &
	at_exit "touch /run/flood.stop; wait; rm -f /run/flood.*"
	must wait_for 60 test -e /run/flood.200
	for i in 1 2 3 4 5; do
		start=$(now_ms)
		must map_on m
		note "up in $(($(now_ms) - start)) ms"
		now=$(remote "$HAS")
		kib=${now% *}
		note "$((${now%% *} - ${before%% *})) queue pairs, $((${now##* } - ${before##* })) threads more; $((${kib#* } / 1024)) MiB are available"
		# The map has some, too.
		[ $((${now%% *} - ${before%% *})) -le 80 ] || bad "more than 64 half-open connections"
		[ $((${now##* } - ${before##* })) -le 16 ] || bad "more than 16 threads more"
		must store "$C/maps/m/enable" 0
	done
	wait_for 120 test -e /run/flood.2000 || bad "not 2,000: $(tail -n 2 /run/hostile.out)"
	must map_on m
	touch /run/flood.stop
	wait
	note "$(tail -n 2 /run/hostile.out)"
	grep -q FAILED /run/hostile.out && bad "hostile.py: $(grep FAILED /run/hostile.out)"
	note "$(remote "grep sent_away $COUNTERS")"
	must unmap m
	wait_for 30 none_is_left || bad "what the server still has: $(remote "$HAS"), before: $before"
}
# Queue pairs of the module, KiB of memory that is available, and threads of the kernel.
HAS='echo "$(rdma resource show qp | grep -c "comm .rdma_cm") $(awk "/^MemAvail/ {print \$2}" /proc/meminfo) $(cat /proc/[0-9]*/status 2>/dev/null | grep -c "^Kthread:.*1")"'
none_is_left() { [ "$(remote "$HAS" | cut -d ' ' -f 1)" = "${before%% *}" ]; }

scenario connect "connections that nobody asked for"
scenario control "control messages that are malformed, late, or too many"
scenario malformed "commands that are malformed: the connection ends"
scenario refused_commands "commands that are refused, and nothing is done"
scenario memory "memory that the server cannot reach"
scenario stranger "more messages, and for longer, than without a login"
scenario slow "too many commands, tags twice, and ends, with commands in flight"
scenario death "a client that dies with commands in flight"
scenario share "hosts that take all that they can have of what the server has for all"
scenario ram "memory of a RAM export that was not granted"
scenario silent "eight hosts that keep all memory of the server that they can have"
scenario pretend "the same of one host that pretends to be eight"
scenario large "the same beside a host whose commands are larger than its own memory"
scenario crawl "eight hosts that let go of the memory as late as they may"
scenario storm "eight hosts that connect, ask for all memory, and are gone"
scenario modest "a host that is late once beside one that wants all memory"
scenario passing "small commands beside a large one that waits for others"
scenario halved "a second host when memory is in small pieces"
scenario flood "2,000 requests that are not confirmed, and strangers that ping"
run_scenarios
