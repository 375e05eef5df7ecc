#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Writes are on their way on path a, and the network keeps them; I/O goes on over b, and the same
# blocks are written again; then the packets of a arrive. What is on the disk must stay what was
# written last. FARBLK_GHOSTS is how many such writes there must have been.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1
GHOSTS=${FARBLK_GHOSTS:-20}
# Blocks that are written at a time, each by one request.
AT_ONCE=16

# write_all: each of the blocks once more. A write that took that long had to wait for the other
# path.
write_all() { stamp "$DEV" --blocks $AT_ONCE --io 4 --jobs $AT_ONCE --state /run/stamp.state --fill-only --stall 700 >/run/stamp.out 2>&1; }

ghosts() {
	local rounds=0 sum=0 held pid
	agent_only
	needs stamp jq
	offer 0 1
	must mkdir "$C/maps/m"
	must settings "$C/maps/m" export=e "$@"
	must path_add m a "$(address server 0)"
	must path_add m b "$(address server 1)"
	must map_on m
	trap 'net pass' EXIT
	rm -f /run/stamp.state
	while [ $sum -lt "$GHOSTS" ]; do
		[ $((rounds += 1)) -le "$GHOSTS" ] || die "only $sum writes were held in $rounds rounds"
		all_live_in "$AGAIN"
		write_all || die "$(cat /run/stamp.out)"
		must net hold 0 client server
		must net cut 0 server client
		# These are on their way when nobody hears any more of a.
		write_all &
		pid=$!
		wait_for $((NO_PATH + 5)) ended $pid || die "no failover: $(states)"
		wait $pid || die "$(cat /run/stamp.out)"
		held=$(stamped slow)
		sum=$((sum + held))
		# The newest: the ones before were sent again over b, and are complete.
		write_all || die "$(cat /run/stamp.out)"
		must net release 0 client server
		sleep 0.3
		must net pass 0
		stamp "$DEV" --blocks $AT_ONCE --io 4 --state /run/stamp.state --verify-only >/run/stamp.out 2>&1 ||
			die "round $rounds, $held writes held: $(cat /run/stamp.out)"
	done
	note "$sum writes were held, in $rounds rounds"
	must unmap m
}
small() { ghosts; }
# Their data is not in the command: the server fetches it.
fetched() { ghosts inline_size=0; }
in_memory() { KIND=ram ghosts; }

# What stamp says of blocks that hold less than what was acknowledged.
OLD='"\(lost\|reverted\|ghost\)":[1-9][0-9]*'
# A server that answers fences at once lets some of them land, or this proves nothing.
fenceless() {
	needs_broken
	reload_server "FARBLK_KO=$FARBLK_BROKEN load_module $(broken no-fence)"
	for KIND in block ram; do
		# The server keeps the silent path for 20 s, and the client for 7.
		! (GHOSTS=200 ghosts heartbeat_ms=4000) >/run/ghosts.out 2>&1 && grep -q "$OLD" /run/ghosts.out || bad "$KIND: not noticed: $(tail -n 5 /run/ghosts.out)"
		note "$KIND: noticed: $(grep -m 1 -o "$OLD" /run/ghosts.out)"
		clean_all
	done
}

scenario small "writes with their data in the command"
scenario fetched "writes whose data the server fetches"
scenario in_memory "one-sided writes"
scenario fenceless "without fences, old data lands"
run_scenarios
