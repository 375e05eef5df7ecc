#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What upstream/core mends in the kernel's RDMA core. The tests need that core, which the guests of
# tools/vm take with FARBLK_CORE=patched; with FARBLK_CORE=stock they run on the stock one, and
# fail. One host.
. "$(dirname "$0")/lib.sh"

needs_core() { [ -n "${FARBLK_CORE:-}" ] || skip "the stock RDMA core fails it, see upstream/core"; }

# addresses: a neighbour behind a veth has answered before the request to resolve its address is
# in the list of those that its answer wakes.
addresses() {
	local n hosts=()
	needs_core
	needs_user_rdma
	[ "$PROVIDER" = rxe ] || skip "only with rxe"
	at_exit '{ rdma link delete core0; ip link delete core0; ip netns delete core; } 2>/dev/null'
	must ip netns add core
	must ip link add core0 type veth peer name core1 netns core
	must ip addr add 10.77.0.1/24 dev core0
	must ip link set core0 up
	for n in {10..19}; do
		must ip -n core addr add "10.77.0.$n/24" dev core1
		hosts+=("10.77.0.$n")
	done
	must ip -n core link set core1 up
	must rxe_add core0 core0
	note "$(python3 "$HERE/resolve.py" 4 "${hosts[@]}" | tee /run/resolve.out)"
	is "resolved at once" "$(tail -n 1 /run/resolve.out)" "10 of 10"
}

scenario addresses "an address is resolved when the neighbour answers"
run_scenarios
