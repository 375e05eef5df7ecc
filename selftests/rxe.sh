#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The bugs of the kernel's rdma_rxe that upstream/rxe mends, one case each: see its README.rst.
# farblk takes no part. With the kernel's own module a bug that shows is an expected failure
# (XFAIL), with the patched one (RXE=patched tools/vm/kselftest rxe.sh) it is a failure; a case
# tells which of both was loaded. In the guests of User Mode Linux it is built in.
. "$(dirname "$0")/lib.sh"

# is_patched: the module that is loaded is not the one of the kernel's package.
is_patched() { grep -qs O /sys/module/rdma_rxe/taint; }
# Without its patch rxe warns of what it does wrong.
is_patched || TOLERATE=1

# setting: rxe9 on an end of a pair of veth. rxe.py has the other end, and address.
setting() {
	needs python3
	needs_user_rdma
	at_exit "rdma link delete rxe9; ip link delete rxe-near"
	must ip link add rxe-near type veth peer name rxe-far
	sysctl -qw net.ipv6.conf.rxe-near.disable_ipv6=1 net.ipv6.conf.rxe-far.disable_ipv6=1
	must ip addr add 10.77.0.1/24 dev rxe-near
	must ip link set rxe-far up
	must ip link set rxe-near up
	must ip neigh replace 10.77.0.2 lladdr "$(</sys/class/net/rxe-far/address)" dev rxe-near nud permanent
	must rxe_add rxe-near rxe9
}
# bug CASE: of rxe.py.
bug() {
	local rc=0 said
	setting
	said=$(python3 -B "$HERE/rxe.py" "$1" 2>&1) || rc=$?
	[ -z "$said" ] || note "$said"
	case $rc in
	0) is_patched || note "this kernel's rdma_rxe does not have the bug" ;;
	3) is_patched && die "the patched rdma_rxe has the bug" || { note "known bug of this kernel's rdma_rxe"; exit 2; } ;;
	4) skip "user space has no RDMA" ;;
	*) die "exit code $rc" ;;
	esac
}
control() { setting; must python3 -B "$HERE/rxe.py" control; }
late_ack() { bug late_ack; }
acknowledged() { bug acknowledged; }
bad_response() { bug bad_response; }
local_operation() { bug local_operation; }
shared_receive() { bug shared_receive; }
datagram() { bug datagram; }
gsi() { bug gsi; }

# asked_for: the module is the one that it is meant to be.
asked_for() {
	if is_patched; then
		note "rdma_rxe is the patched one"
		# Its build ID.
		must python3 -c 'import sys; note, file = (open(name, "rb").read() for name in sys.argv[1:]); sys.exit(note not in file)' \
			/sys/module/rdma_rxe/notes/.note.gnu.build-id "${FARBLK_RXE:-none}"
	else
		note "rdma_rxe is the kernel's own"
		is "FARBLK_RXE" "${FARBLK_RXE:-}" ""
	fi
}

[ "$PROVIDER" = rxe ] || skip "PROVIDER is $PROVIDER"
scenario control "what rxe does right"
scenario late_ack "a late ACK does not end a READ"
scenario acknowledged "an ACK does not complete a READ"
scenario bad_response "a bad response does not complete a READ with success"
scenario local_operation "a local operation does not run again with a message before it"
scenario shared_receive "a receive from a shared queue completes when its queue pair fails"
scenario datagram "a datagram that cannot be sent does not fail its queue pair"
scenario gsi "connections can be made after the link was down"
scenario asked_for "the module is the one that was asked for"
run_scenarios
