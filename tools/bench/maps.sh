#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Runs in the guest: how long a map takes to come up, with a map of each peer beside the others, in
# turn. BENCH_PEERS, which are exports of farblk, BENCH_REPEATS, BENCH_MIB. Results: out/maps.txt, a
# line for each peer with the median, the least and the most in us, and the median as a multiple of
# that of the first peer; out/PEER.error if it did not come up.
# shellcheck source=tools/vm/guest/lib.sh
. /farblk/vm/guest/lib.sh
cd /farblk || exit
BENCH_POLL=""

up=()
(. ./peer.sh brd && disk_up) || exit
for peer in $BENCH_PEERS; do
	(. ./peer.sh "$peer" && peer_up >/dev/null 2>"out/$peer.error") || { tail -n 1 "out/$peer.error"; exit 1; }
	rm "out/$peer.error"
	up+=("$peer")
done
for ((repeat = 1; repeat <= BENCH_REPEATS; repeat++)); do
	for peer in "${up[@]}"; do
		map=$(. ./peer.sh "$peer" && echo "$farblk/maps/$object")
		echo 0 >"$map/enable" || exit
		start=${EPOCHREALTIME/./}
		echo 1 >"$map/enable" || exit
		echo $((${EPOCHREALTIME/./} - start)) >>"out/$peer.us"
	done
done
for peer in "${up[@]}"; do
	sort -n "out/$peer.us" | awk -v peer="$peer" -v first="$first" '
		{us[NR] = $1}
		END {median = us[int((NR + 1) / 2)]; printf "%-14s %8d us (%d to %d)  %.2f x\n", peer, median, us[1], us[NR], median / (first ? first : median)}'
	first=${first:-$(sort -n "out/$peer.us" | awk '{us[NR] = $1} END {print us[int((NR + 1) / 2)]}')}
done >out/maps.txt
rc=0
for ((i = ${#up[@]} - 1; i >= 0; i--)); do
	(. ./peer.sh "${up[i]}" && peer_down) || { echo "peer ${up[i]}: not brought down"; rc=1; }
done
exit $rc
