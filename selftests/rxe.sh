#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The bugs of the kernel's rdma_rxe that upstream/rxe mends, one case each: see its README.rst.
# farblk takes no part. With the kernel's own module a bug that shows is an expected failure
# (XFAIL), and one that does not show is a failure, if it is the kernel that the patches are for.
# With the patched one (RXE=patched tools/vm/kselftest rxe.sh) a bug that shows is a failure. A case
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
# known: the bug shows; ends the test.
known() {
	[ -z "$*" ] || note "$*"
	! is_patched || die "the patched rdma_rxe has the bug"
	note "known bug of this kernel's rdma_rxe"
	exit 2
}
# mended: the bug does not show.
mended() {
	is_patched || case $(uname -r) in
	7.3.4*) bad "the rdma_rxe of the kernel that upstream/rxe is for does not show the bug" ;;
	*) note "this kernel's rdma_rxe does not have the bug" ;;
	esac
}
# bug CASE: of rxe.py.
bug() {
	local rc=0 said
	setting
	said=$(python3 -B "$HERE/rxe.py" "$1" 2>&1) || rc=$?
	[ -z "$said" ] || note "$said"
	case $rc in
	0) mended ;;
	3) known ;;
	4) skip "user space has no RDMA" ;;
	*) die "exit code $rc" ;;
	esac
}
control() { setting; must python3 -B "$HERE/rxe.py" control; }
late_ack() { bug late_ack; }
acknowledged() { bug acknowledged; }
bad_response() { bug bad_response; }
short_response() { bug short_response; }
local_operation() { bug local_operation; }
shared_receive() { bug shared_receive; }
datagram() { bug datagram; }
gsi() { bug gsi; }

# --- REG_MR, which only the kernel can post -------------------------------------------------------

NVMET=/sys/kernel/config/nvmet
# nvmet_on ADDRESS: the server has a disk of NVMe. nvmet_off: not any more.
nvmet_on() {
	local s=$NVMET/subsystems/rxe p=$NVMET/ports/4420 disk
	modprobe nvmet-rdma && disk=$(null_disk nvme 16) && mkdir -p "$s/namespaces/1" "$p" &&
		settings "$s" attr_allow_any_host=1 "namespaces/1/device_path=$disk" namespaces/1/enable=1 &&
		settings "$p" addr_trtype=rdma addr_adrfam=ipv4 "addr_traddr=$1" addr_trsvcid=4420 && ln -s "$s" "$p/subsystems/rxe"
}
nvmet_off() {
	local s=$NVMET/subsystems/rxe p=$NVMET/ports/4420
	rm -f "$p/subsystems/rxe" && rmdir "$p" && rmdir "$s/namespaces/1" && rmdir "$s"
} 2>/dev/null
# lossy EVERY: of the packets to the server that many each lose one. lost: so many it was. lossless.
lossy() {
	local dev
	dev=$(rxe_netdev) && tc qdisc add dev "$dev" ingress &&
		tc filter add dev "$dev" ingress protocol ip flower ip_proto udp dst_port 4791 action gact pass random determ drop "$1"
}
lost() { tc -s filter show dev "$(rxe_netdev)" ingress | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'; }
lossless() { tc qdisc del dev "$(rxe_netdev)" ingress; } 2>/dev/null
# anew: rxe0 without the completion queues that the core keeps for the next user.
anew() { local dev; dev=$(rxe_netdev) && rdma link delete rxe0 && rxe_add "$dev"; }
# there LINE: runs it on the server, with these functions.
there() { remote "NVMET=$NVMET; $(declare -f nvmet_on nvmet_off lossy lost lossless anew); $1"; }
# losses: connections that nvme-rdma has lost.
losses() { dmesg | grep -c 'nvme nvme[0-9]*: starting error recovery'; }
more_losses() { [ "$(losses)" != "$1" ]; }
reads_end() { ended "$1" || more_losses "$2"; }

# registrations: nvme-rdma registers memory for each read of a disk. With others under way one
# packet of a hundred to the server is lost.
registrations() {
	local before reads rc=0 lost
	agent_only
	# It turns itself off when it has something to say, and nobody could tell any more.
	[ ! -e /proc/lockdep_stats ] || skip "lockdep complains of nvmet"
	needs nvme fio tc
	needs_module nvmet-rdma
	needs_own_module nvme-rdma
	at_exit 'there "nvmet_off; anew"; anew'
	must there "nvmet_on $FARBLK_SERVER"
	at_exit 'nvme disconnect -n rxe >/dev/null 2>&1'
	must nvme connect -t rdma -a "$FARBLK_SERVER" -s 4420 -n rxe -i 1 -Q 32 -k 60 -c 1 >/dev/null
	wait_for 30 [ -b /dev/nvme0n1 ] || die "there is no disk"
	before=$(losses)
	at_exit 'there lossless'
	there 'lossy 100' || skip "the server's kernel cannot lose packets by count"
	fio --name=r --filename=/dev/nvme0n1 --readonly --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=16 --number_ios=1500 >/run/fio.out 2>&1 &
	reads=$!
	wait_for 120 reads_end $reads "$before" || bad "the reads do not end"
	lost=$(there lost)
	must there lossless
	note "$lost packets were lost"
	if more_losses "$before"; then
		# It may not connect again either, and then the reads wait.
		nvme disconnect -n rxe >/dev/null
		wait $reads
		known "nvme-rdma lost its connection: a work request that registers memory ran again"
	fi
	wait $reads || rc=$?
	is "the exit code of fio" $rc 0
	[ "${lost:-0}" -ge 10 ] || bad "too few packets were lost"
	mended
}

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
scenario short_response "a READ without all of its data does not complete with success"
scenario local_operation "a local operation does not run again with a message before it"
scenario registrations "memory is not registered again with a message before it"
scenario shared_receive "a receive from a shared queue completes when its queue pair fails"
scenario datagram "a datagram that cannot be sent does not fail its queue pair"
scenario gsi "connections can be made after the link was down"
scenario asked_for "the module is the one that was asked for"
run_scenarios
