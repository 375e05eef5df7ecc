#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# RAM exports are one-sided: the server's CPU has no part in the I/O.
. "$(dirname "$0")/lib.sh"
SECONDS_OF_IO=${FARBLK_ONESIDED_SECONDS:-60}

completions() { remote "cat $COUNTERS" | awk '$1 == "io_completions" {print $2; found = 1} END {exit !found}'; }

no_completions() {
	local before after ios
	must serve e 64M
	must map m e
	is mode "$(show "$C/maps/m/mode")" one_sided
	before=$(completions) || die "the server does not count them in $COUNTERS"
	must fio --name=load --filename="$DEV" --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=16 \
		--time_based --runtime="$SECONDS_OF_IO" --output-format=json --output=/run/fio.json
	after=$(completions)
	ios=$(jq '.jobs[0].read.total_ios + .jobs[0].write.total_ios' /run/fio.json)
	note "$ios requests in $SECONDS_OF_IO s; the server's I/O completions: $before -> $after"
	[ "$ios" -gt 100 ] || bad "only $ios requests were made"
	is "the server's I/O completions" "$after" 0
	must unmap m
}

# The server registers the memory once for all who write, and once for those who may only read,
# however often they come.
registered_once() {
	local before slabs=4 round access
	before=$(remote "counter $COUNTERS grants")
	must serve e $((slabs << 26)) max_clients=4
	for round in 1 2 3; do
		must map one e
		must map two e
		[ $round != 1 ] || must direct_write /dev/urandom "$DEV" bs=64k count=4
		must unmap one
		must remote "store $C/ports/p/enable 0 && store $C/ports/p/enable 1"
		wait_for 30 eval '[ "$(show $C/maps/two/state)" = live ]' || bad "the map does not come back"
		must direct_read "$DEV" /dev/null bs=64k count=4
		must unmap two
		is "slabs registered after round $round" $(($(remote "counter $COUNTERS grants") - before)) $slabs
	done
	must map one e access=ro
	must direct_read "$DEV" /dev/null bs=64k count=4
	must unmap one
	is "slabs registered for who reads, too" $(($(remote "counter $COUNTERS grants") - before)) $((2 * slabs))
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/enable 1"
	must map one e
	must unmap one
	is "slabs registered for other memory" $(($(remote "counter $COUNTERS grants") - before)) $((3 * slabs))
}

scenario no_completions "the server reaps no completion of I/O while fio runs"
scenario registered_once "the server registers its memory once for all who map it"
run_scenarios
