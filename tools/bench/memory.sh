#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in two guests, server and client: what an idle connection costs each of them. BENCH_PEERS,
# BENCH_REPEATS, BENCH_MIB. Results: out/PEER.REPEAT.json, the memory in KiB at each step; repeat 0
# loads modules and does not count. out/PEER.error if it did not come up.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit
. ./meminfo.sh
BENCH_POLL=""

# word STATUS FILE: what the other side is told.
word() { if [ "$1" = 0 ]; then echo up; else echo "down $(tail -n 1 "$2")"; fi; }

# Both sides of one connection; every line with a barrier has its like in the other.
server() {
	local peer=$1 n=$2 none alone connected state
	none=$(memory)
	server_up 2>"out/$peer.error"
	state=$(word $? "out/$peer.error")
	put "$peer-$n-server" "$state"
	if [ "$state" = up ]; then
		alone=$(memory)
		barrier "$peer-$n-alone"
		state=$(get "$peer-$n-client")
		connected=$(memory)
		barrier "$peer-$n-connected"
		barrier "$peer-$n-disconnected"
	fi
	server_down 2>>"out/$peer.error"
	[ "$state" = up ] || { echo "${state#down }" >"out/$peer.error"; return 1; }
	echo "{\"none\": $none, \"alone\": $alone, \"connected\": $connected}" >"out/$peer.$n.json"
	rm "out/$peer.error"
}

client() {
	local peer=$1 n=$2 alone connected state
	state=$(get "$peer-$n-server")
	[ "$state" = up ] || return
	alone=$(memory)
	barrier "$peer-$n-alone"
	client_up "$(address server)" >/dev/null 2>"out/$peer.error"
	state=$(word $? "out/$peer.error")
	put "$peer-$n-client" "$state"
	connected=$(memory)
	barrier "$peer-$n-connected"
	client_down 2>>"out/$peer.error"
	barrier "$peer-$n-disconnected"
	[ "$state" = up ] || return
	echo "{\"queues\": $(nproc), \"alone\": $alone, \"connected\": $connected}" >"out/$peer.$n.json"
	rm "out/$peer.error"
}

[ "$ROLE" = client ] || (. ./peer.sh brd && disk_up) || exit
for peer in $BENCH_PEERS; do
	(
		. ./peer.sh "$peer"
		# What is no client of a server, or has no RDMA, is not asked.
		declare -F server_up >/dev/null && [ -z "${without_rdma:-}" ] || exit 0
		for ((n = 0; n <= BENCH_REPEATS; n++)); do
			"$ROLE" "$peer" "$n" || { echo "peer $peer does not come up: $(tail -n 1 "out/$peer.error" 2>/dev/null)"; break; }
		done
	)
done
barrier end
