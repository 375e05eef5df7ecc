#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A server's numbers and timing cannot hurt the client: hostile_server.py is a server in user space
# that breaks the protocol in all its parts. No kernel complains, enable ends in time, a map fails
# with a reason or goes on with the right data, and force ends it. On one host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE
# The hostile server's, on the same device: on the host's own the module may listen.
HOSTILE=10.9.0.77 SECOND=10.9.0.78

# hostile GROUP: the cases of that group.
hostile() {
	local rc
	not_local
	needs python3
	needs_user_rdma
	must server_address "$HOSTILE"
	must server_address "$SECOND"
	python3 "$HERE/hostile_server.py" "$HOSTILE" "$SECOND" "$1" 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	ip addr del "$HOSTILE/24" dev "$(rxe_netdev)"
	ip addr del "$SECOND/24" dev "$(rxe_netdev)"
	[ "$rc" != 4 ] || skip "user space has no RDMA"
	[ "$rc" = 0 ] || bad "hostile_server.py $1 ends with $rc"
}

connect() { hostile connect; }
login() { hostile login; }
grants() { hostile grants; }
slabs() { hostile slabs; }
answers() { hostile answers; }
immediate() { hostile immediate; }
memory() { hostile memory; }
events() { hostile events; }
order() { hostile order; }
readonly_() { hostile readonly; }
return_() { hostile return; }
slabsize() { hostile slabsize; }
slow() { hostile slow; }
numbers() { hostile numbers; }
paths() { hostile paths; }
late() { hostile late; }
silence() { hostile silence; }
first() { hostile first; }
again() { hostile again; }

# hostile_live.sh is the second half of the scenarios: together they take longer than one test may.
if [ -z "${HOSTILE_LIVE:-}" ]; then
	scenario connect "answers to a connection that are none"
	scenario login "answers to a login with wrong numbers, of wrong length, too early or never"
	scenario grants "grants of slabs that are wrong, or never come"
	scenario slabs "more slabs than anybody has memory for the list of"
	scenario answers "answers to commands that are wrong in all their fields"
	scenario immediate "an RDMA WRITE that passes for an answer"
	scenario memory "RDMA to memory of the client that was not given, or was before"
else
	scenario events "events that are malformed, make no sense, or never end"
	scenario order "extents that come out of order"
	scenario readonly_ "a map that may only read is told that it may write"
	scenario return_ "a server that comes back as another one"
	scenario slabsize "an export of RAM that comes back with smaller slabs"
	scenario slow "a server that is slow, and makes progress"
	scenario numbers "numbers at their limits, and those that change with each login"
	scenario paths "a second path that leads elsewhere"
	scenario late "messages after the end, and answers twice"
	scenario silence "silence, and the end, at each step"
	scenario first "the first read of a disk is never answered"
	scenario again "a server that lets the client in, and breaks the protocol, again and again"
fi
run_scenarios
