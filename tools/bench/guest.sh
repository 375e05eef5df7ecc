#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: brings up all peers beside each other, then asks them in turn, so that a drift of the machine hits all.
# BENCH_MODE (of the file jobs), BENCH_PEERS, BENCH_REPEATS, BENCH_MIB (size of the disks).
# Results: out/PEER.JOB.REPEAT.json, and out/PEER.error if it did not come up.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit

# peer_measure DEVICE RW BYTES DEPTH MILLISECONDS: prints the result as JSON. A peer may have one of its own.
peer_measure() {
	fio --name=bench --filename="$1" --rw="$2" --bs="$3" --iodepth="$4" --runtime="${5}ms" --time_based --ioengine=io_uring --direct=1 \
		--thread --norandommap --scramble_buffers=0 --disk_util=0 --lat_percentiles=1 --percentile_list=50 --output-format=json
}

declare -A device
rc=0
up=()
for peer in $BENCH_PEERS; do
	# shellcheck source=/dev/null
	if device[$peer]=$(. "peers/$peer.sh" && peer_up 2>"out/$peer.error"); then
		up+=("$peer")
		rm "out/$peer.error"
	else
		echo "peer $peer does not come up: $(tail -n 1 "out/$peer.error")"
		rc=1
	fi
done

for ((repeat = 1; repeat <= BENCH_REPEATS; repeat++)); do
	while read -r mode name rw bytes depth ms _; do
		[ "$mode" = "$BENCH_MODE" ] || continue
		for peer in "${up[@]}"; do
			# shellcheck source=/dev/null
			(. "peers/$peer.sh" && peer_measure "${device[$peer]}" "$rw" "$bytes" "$depth" "$ms") >"out/$peer.$name.$repeat.json" </dev/null ||
				{ echo "peer $peer: $name failed"; rc=1; }
		done
	done <"jobs"
done

for ((i = ${#up[@]} - 1; i >= 0; i--)); do
	# shellcheck source=/dev/null
	(. "peers/${up[i]}.sh" && peer_down) || { echo "peer ${up[i]}: not brought down"; rc=1; }
done
exit $rc
