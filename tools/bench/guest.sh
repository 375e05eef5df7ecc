#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: brings up all peers beside each other, then asks them in turn, so that a drift of the machine hits all.
# BENCH_MODE (of the file jobs), BENCH_PEERS, BENCH_REPEATS, BENCH_MIB (size of the disks).
# Results: out/PEER.JOB.REPEAT.json, and out/PEER.error if it did not come up: the others are measured all the same.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit

declare -A device
rc=0
up=()
(. ./peer.sh brd && disk_up) || exit
for peer in $BENCH_PEERS; do
	if device[$peer]=$(. ./peer.sh "$peer" && peer_up 2>"out/$peer.error"); then
		up+=("$peer")
		rm "out/$peer.error"
	else
		echo "peer $peer does not come up: $(tail -n 1 "out/$peer.error")"
		(. ./peer.sh "$peer" && peer_down) >/dev/null 2>&1
	fi
done
# A disk with one queue, which is what one CPU makes, gets mq-deadline by default, others none: that alone is worth 70 % of
# nvme's time per I/O at depth 32.
for scheduler in /sys/block/*/queue/scheduler; do echo none >"$scheduler"; done

for ((repeat = 1; repeat <= BENCH_REPEATS; repeat++)); do
	while read -r mode name rw bytes depth ms _; do
		[ "$mode" = "$BENCH_MODE" ] || continue
		for peer in "${up[@]}"; do
			(. ./peer.sh "$peer" && peer_measure "${device[$peer]}" "$rw" "$bytes" "$depth" "$ms") >"out/$peer.$name.$repeat.json" </dev/null ||
				{ echo "peer $peer: $name failed"; rc=1; }
		done
	done <"jobs"
done

for ((i = ${#up[@]} - 1; i >= 0; i--)); do
	(. ./peer.sh "${up[i]}" && peer_down) || { echo "peer ${up[i]}: not brought down"; rc=1; }
done
exit $rc
