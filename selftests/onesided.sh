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

scenario no_completions "the server reaps no completion of I/O while fio runs"
run_scenarios
