#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# farblk on the HCA of tools/testhca, as it is and as poorer or failing devices are: see
# Documentation/testhca.rst. One host, PROVIDER=testhca.
# Long: all scenarios set parameters of one device, and share what makes it anew.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE
P=/sys/module/testhca/parameters
STATS=/sys/class/infiniband/rxe0/ports/1/hw_counters

[ "$PROVIDER" = testhca ] || skip "PROVIDER is $PROVIDER"

# parameter NAME=VALUE...: of the HCA, until the scenario ends.
parameter() {
	local item
	for item; do
		at_exit "echo '$(<"$P/${item%%=*}")' >'$P/${item%%=*}'"
		must store "$P/${item%%=*}" "${item#*=}"
	done
}
# device NAME=VALUE...: and for a device that is made anew; limits count from then on.
device() {
	at_exit renew
	parameter "$@"
	at_exit clean
	renew
}
renew() {
	local dev
	dev=$(rxe_netdev)
	must rdma link delete rxe0
	must rxe_add "$dev"
}
# stat NAME: that counter of the device, at once.
stat() { echo 1 >"$STATS/lifespan" 2>/dev/null; sleep 0.1; show "$STATS/$1"; }

# kinds COMMAND...: with a map m of a RAM export, then of a block export. Where memory is bounced
# there is none of RAM.
KINDS="ram block"
! grep -q swiotlb=force /proc/cmdline || KINDS=block
kinds() {
	for KIND in $KINDS; do
		case $KIND in
		ram) must serve e 16M && must map m e ;;
		block) disk_of 'null_disk fbm 16' ;;
		esac
		"$@" || bad "$KIND: $* fails"
		must unmap m
		clean
	done
}
# moves: what was written in one size is read in another one.
MOVED=4
! is_short || MOVED=1
moves() {
	local size
	random /run/data $MOVED
	for size in ${SIZES:-4k 64k 1M}; do
		must direct_write /run/data "$DEV" bs="$size"
		must direct_read "$DEV" /run/back bs=16k count=$((MOVED << 6))
		must cmp /run/data /run/back
	done
	rm -f /run/back
}

plain() { kinds moves; }
# poor NAME=VALUE...: data move on such a device, too, and it had nothing to complain of.
poor() {
	device "$@"
	kinds moves
	is "DMA faults" "$(stat dma_faults)" 0
	is "completion queues that overran" "$(stat cq_overruns)" 0
}
no_srq() { poor max_srq=0; }
# The driver tells of SRQs, and has no function to make one.
no_srq_ops() { poor srq_ops=0; }
# no_remote_inv: the device promises SEND with invalidation, and has none; the administrator knows.
no_remote_inv() {
	local before
	must reload_server "load_module remote_invalidate=0"
	poor remote_inv=0
	disk_of 'null_disk fbm 16'
	before=$(invalidations)
	moves
	[ "$(invalidations)" -gt "$before" ] || bad "the client invalidates no key"
}
# invalidations: how often the client has invalidated a key itself.
invalidations() { awk '{ for (i = 1; i < NF; i++) if ($i == "invalidations") n += $(i + 1) } END { print n + 0 }' "$D/client/m/counters"; }
# no_mem_mgt: such a device can be that of a server of a disk.
no_mem_mgt() {
	[ -e /sys/class/infiniband/rxe1 ] || skip "there is no second device"
	device mem_mgt=0
	must store "$P/mem_mgt" 1
	KINDS=block across
}
# bounced: with swiotlb=force a RAM export cannot be had over the device, in words, and I/O to a
# disk may begin and end anywhere in a page.
bounced() {
	grep -q swiotlb=force /proc/cmdline || skip "memory is not bounced: --append swiotlb=force"
	needs python3
	must serve e 16M
	map m e 2>/dev/null && bad "a RAM export was mapped over a device that sees copies"
	is "last_error" "$(show "$C/maps/m/last_error")" "EOPNOTSUPP the server's device reaches no memory but bounce buffers"
	clean
	disk_of 'null_disk fbm 16' inline_size=0
	moves
	must python3 - "$DEV" <<-'END'
		import mmap, os, sys
		fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
		room = mmap.mmap(-1, 1 << 20)
		for start in 0, 512, 2048, 3584:
		    for length in 512, 2048, 4096, 4608, 8192, 12800, 131072, 200704:
		        there = memoryview(room)[start : start + length]
		        data = os.urandom(length)
		        there[:] = data
		        if os.pwritev(fd, [there], 65536) != length:
		            sys.exit(f"{start}, {length}: a short write")
		        there[:] = bytes(length)
		        if os.preadv(fd, [there], 65536) != length or there != data:
		            sys.exit(f"{start}, {length}: other data")
	END
}
# iwarp: the data of a READ go to a region that the peer may write to, and only as long as the READ
# is under way. The server of a disk READs the data of writes; those of RAM are READ by the client.
iwarp() {
	local before
	poor iwarp=1
	disk_of 'null_disk fbm 16' inline_size=0
	before=$(stat sinks)
	verified
	[ "$(stat sinks)" -gt $((before + 20)) ] || bad "no data were READ"
	is "READs into what the peer may not write" "$(stat bad_sinks)" 0
	is "regions that the peer may write when all is done" "$(stat writable)" 0
	# What a READ that has failed leaves goes with its connection.
	fails_to_post
	loses_acks
	parameter late_ns=300000
	verified
	is "READs into what the peer may not write" "$(stat bad_sinks)" 0
	is "regions that the peer may write when all is done" "$(stat writable)" 0
}
verified() {
	must fio --name=verify --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bsrange=4k-512k --iodepth=16 --size=16m --verify=crc32c --verify_fatal=1 \
		--verify_backlog=16 --output=/run/fio.out
}
# sinks_noticed: a module that does it wrongly fails that test.
sinks_noticed() {
	needs_broken
	device iwarp=1
	on_broken bad-sinks
	direct_write /dev/zero "$DEV" bs=64k count=1 2>/dev/null &
	wait_for 20 counts bad_sinks || bad "no READ into memory that the peer may not write was noticed"
	must store "$C/maps/m/enable" force
	wait
	clean
	on_broken standing-sinks
	must direct_write /dev/zero "$DEV" bs=64k count=1
	counts writable || bad "no region that stays was noticed"
	must unmap m
}
# on_broken NAME: a map of a disk, of the module with that patch.
on_broken() {
	reload_server "FARBLK_KO=$FARBLK_BROKEN load_module $(broken "$1")"
	disk_of 'null_disk fbm 16' inline_size=0
}
# counts NAME: that counter of the device is not 0.
counts() { [ "$(stat "$1")" -gt 0 ]; }
few_segments() { poor max_sge=3; }
one_segment() { poor max_sge_rd=1; }
few_pages() { poor max_pages=16; }
# few_requests: a map gets as many commands as the queues of the device have room for.
few_requests() {
	local wr depth
	for wr in 1022 1023 1024; do
		device max_wr=$wr
		back "null_disk fbm 16"
		must serve_block e "$BACK"
		for depth in 340 1024; do
			must map m e depth=$depth
			moves
			must unmap m
		done
		clean
	done
}
# slabs: the more pages a region of the device has, the larger they are.
slabs() {
	local most regions before=1000
	for most in 4 16 512; do
		device max_pages=$most
		must serve e 192M
		must map m e
		regions=$(rdma resource show | sed -n 's/.*rxe0: .* mr \([0-9]*\) .*/\1/p')
		[ "$regions" -lt "$before" ] || bad "with $most pages there are $regions regions, and were $before with fewer"
		before=$regions
		moves
		must direct_write /run/data "$DEV" bs=64k seek=1022
		must direct_read "$DEV" /run/back bs=64k count=$((MOVED << 4)) skip=1022
		must cmp /run/data /run/back
		clean
	done
	note "$regions regions"
}
# small_pages: where a page of the kernel is larger, a region has several pages for it.
small_pages() { poor page_sizes=0x40201000; }
one_read() { poor max_rd_atom=1; }
# few_reads: a server of a disk has no more RDMA READs under way than the devices can have: one more
# would hold up the answers behind it.
few_reads() {
	device max_rd_atom=2
	disk_of 'null_disk fbm 16'
	parameter latency_ns=200000
	must fio --name=w --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bs=64k --iodepth=32 --size=16m --verify=crc32c \
		--verify_fatal=1 --verify_backlog=16 --output=/run/fio.out
	is "READs that had to wait for others" "$(stat read_stalls)" 0
}
# few_qps: where the queue pairs run out, of the client or of the server, a map has fewer queues; a
# map that has a disk waits.
few_qps() {
	local most
	for most in 8 9; do
		parameter max_qp=$most
		# Each connection has two queue pairs here, and one is the control connection.
		disk_of 'null_disk fbm 16' queues=8
		is "queues with $most queue pairs" "$(queues)" 3
		moves
		# Others take the place of two queues for a while.
		must reload_port
		within 30 moves
		is "queues when it is back" "$(queues)" 3
		clean
	done
	# Polled queues are the last ones: the disk has none, and comes back nevertheless.
	parameter max_qp=9
	disk_of 'null_disk fbm 16' queues=2 poll_queues=2
	is "queues of four, of which two are polled" "$(queues)" 3
	must reload_port
	within 30 moves
	clean
	parameter max_qp=3
	back 'null_disk fbm 16'
	must serve_block e "$BACK"
	map m e 2>/dev/null && bad "a map comes up without any queue"
	is "last_error" "$(show "$C/maps/m/last_error")" "ENOMEM the server is out of memory"
}
# queues: I/O connections of the map; the disk has no more queues than there are CPUs.
queues() { grep -c " waits " "$D/server/connections"; }
reload_port() { store "$C/ports/p/enable" 0 && store "$C/ports/p/enable" 1; }
one_vector() { poor vectors=1; }
# no_last_wqe: what connections take with them when they end leaves enough receives for others.
no_last_wqe() {
	poor last_wqe=0
	disk_of 'null_disk fbm 16'
	for n in 1 2 3 4 5 6; do
		within 30 must store "$C/maps/m/enable" 0
		must map_on m
	done
	moves
	clean
}
# On User Mode Linux such an interrupt waits for the next tick.
hard() { SIZES=1M poor hard_interrupt=1; }
wire() {
	parameter latency_ns=200000 mbit=2000
	kinds moves
}

# poll_us: a server whose commands come in close together is woken less often, and not for ever.
poll_us() {
	local asleep awake
	[ "$(nproc)" -gt 1 ] || skip "the worker lets the reader have the only CPU"
	parameter vector_cpus=1
	parameter latency_ns=20000
	asleep=$(woken 0) || bad "$asleep"
	awake=$(woken 10000) || bad "$awake"
	note "the worker was woken $asleep times for 400 reads, $awake times if it looks on"
	# How many these are depends on what else runs.
	[ $((awake * 4)) -lt $((asleep * 3)) ] || bad "with poll_us the worker was woken $awake times, without it $asleep times"
	DEV=/dev/$(show "$C/maps/m/device")
	moves
	sleep 1
	awake=$(woken_so_far)
	sleep 1
	is "interrupts of a server that has nothing to do" "$(woken_so_far)" "$awake"
	is "state" "$(show "$C/maps/m/state")" live
}
# woken POLL_US: how often the server's worker is woken for 400 reads, one at a time.
woken() {
	local before
	{
		clean_all
		remove_module
		load_module "poll_us=$1"
		disk_of 'null_disk fbm 16' queues=1 heartbeat_ms=60000
		before=$(woken_so_far)
		# Not on the CPU whose interrupts wake the worker.
		must not_on "$(sed -n 's/.* vector \([0-9]*\) .*/\1/p' "$D/server/connections")" direct_read "$DEV" /dev/null bs=4k count=400
	} >&2
	echo $(($(woken_so_far) - before))
}
# not_on CPU COMMAND...: on the other ones.
not_on() { (all=$(seq 0 $(($(nproc) - 1)) | grep -vx "$1" | paste -sd,) && taskset -cp "$all" "$BASHPID" >/dev/null && "${@:2}"); }
woken_so_far() { sed -n 's/.* interrupts //p' "$D/server/connections"; }

# A post that fails costs a connection at the most, and no data.
failed_post() { kinds fails_to_post; }
fails_to_post() {
	local n
	for n in 1 2 3 5 8; do
		must store "$P/fail_post" "$n"
		moves
		is "sends that are yet to fail" "$(show "$P/fail_post")" 0
	done
}

late() { parameter late_ns=300000; kinds moves; }

# sealed: I/O with protection, also when sends fail and completions are late.
sealed() {
	local protection key
	needs python3
	device max_sge_rd=1
	for protection in crc32c seal; do
		key=$(new_key)
		back "null_disk fbm 16"
		must serve_block e "$BACK" allow_any_host=0 "protection=$protection"
		must admit e "$(show "$C/host_name")" "$key"
		must map m e "protection=$protection" "key=$key"
		moves
		fails_to_post
		parameter late_ns=300000
		moves
		is "forged, as the server counts" "$(counter "$COUNTERS" forged)" 0
		is "forged, as the map counts" "$(counter "$D/client/m/counters" forged)" 0
		is state "$(show "$C/maps/m/state")" live
		must unmap m
		clean
	done
	is "DMA faults" "$(stat dma_faults)" 0
}

# slow_registration: the registrations of requests take 2 ms each.
slow_registration() { KINDS=block SIZES=64k; kinds with_slow_registration; }
with_slow_registration() {
	parameter reg_ns=2000000
	moves
}
# failed_invalidation: an answer that invalidates a key fails to; the map comes back, and its I/O
# goes on.
failed_invalidation() {
	local n
	disk_of 'null_disk fbm 16'
	for n in 1 5 20; do
		must store "$P/fail_inv" $n
		SIZES=64k moves
		is "invalidations to go" "$(show "$P/fail_inv")" 0
	done
}
# lost_sent: a command is answered, and its own completion never appears. It is the device that owes
# it: the path is lost, and the command comes again on the next one. Without heartbeats there are no
# other SENDs.
lost_sent() {
	local size pid
	disk_of 'null_disk fbm 16' heartbeat_ms=0 io_timeout_ms=1000
	random /run/data 4
	for size in 4k 64k; do
		must store "$P/lose_sent" 1
		direct_write /run/data "$DEV" bs=$size &
		pid=$!
		wait_for 20 sent_is_lost || bad "no completion is lost"
		wait_for 30 ended "$pid" || die "the write does not end"
		wait "$pid" || bad "the write failed"
		must direct_read "$DEV" /run/back count=4
		must cmp /run/data /run/back
	done
	is "lost connections" "$(show "$C/maps/m/paths/a/reconnects")" 2
	must unmap m
}
sent_is_lost() { [ "$(show "$P/lose_sent")" = 0 ]; }

# lost_completion: of most nobody can know. What waits for one is over when the map is ended by
# force, also at once.
lost_completion() { kinds loses_a_completion; }
loses_a_completion() {
	local n pid
	for n in 1 2 7; do
		random /run/data 4
		must store "$P/lose_cqe" $n
		direct_write /run/data "$DEV" bs=64k &
		pid=$!
		wait_for 20 all_lost || bad "no completion is lost"
		sleep 1
		within 10 must store "$C/maps/m/enable" force
		wait_for 20 ended "$pid" || die "the write does not end"
		wait "$pid"
		must map_on m
		moves
	done
}
all_lost() { [ "$(show "$P/lose_cqe")" = 0 ]; }

# removed: the device goes while there is I/O, after so many sends, and is made again.
removed() { kinds is_removed; }
is_removed() {
	local n pid
	NEAR=$(rxe_netdev)
	at_exit 'store "$P/remove_at" 0; wait_for 20 made_again'
	for n in 1 4 9 30 100; do
		random /run/data 4
		must store "$P/remove_at" "$n"
		must direct_write /run/data "$DEV" bs=16k &
		pid=$!
		wait_for 20 has_no_device || bad "the device stays, with $(show "$P/remove_at") sends to go"
		# Its name is taken a little longer than sysfs shows it.
		wait_for 20 made_again || die "the device cannot be made again"
		wait_for 60 ended "$pid" || die "the write does not end"
		wait "$pid" || bad "the write failed"
		must direct_read "$DEV" /run/back count=4
		must cmp /run/data /run/back
	done
}
has_no_device() { [ ! -e /sys/class/infiniband/rxe0 ]; }
made_again() { { ! has_no_device || rdma link add rxe0 type "$PROVIDER" netdev "$NEAR"; } && rxe_has_ipv4 rxe0; }

# fatal: firmware dies under I/O. A map can be ended by force, and the device goes.
fatal() { kinds is_fatal; }
fatal_silent() {
	parameter fatal_silent=1
	kinds is_fatal
}
is_fatal() {
	local pid
	NEAR=$(rxe_netdev)
	at_exit 'rdma link delete rxe0; wait_for 20 made_again'
	random /run/data 4
	must store "$P/fatal_at" 20
	direct_write /run/data "$DEV" bs=64k 2>/dev/null &
	pid=$!
	wait_for 20 has_failed || bad "the device works, with $(show "$P/fatal_at") sends to go"
	must within "$([ "$(show "$P/fatal_silent")" = Y ] && echo 20 || echo 10)" store "$C/maps/m/enable" force
	wait_for 20 ended "$pid" || die "the write does not end"
	within 20 must rdma link delete rxe0
	must rxe_add "$NEAR"
	wait_for 20 map_on m || die "the map cannot be enabled again: $(show "$C/maps/m/last_error")"
	moves
}
has_failed() { [ "$(show "$P/fatal_at")" = 0 ]; }

# A queue pair that cannot be moved to the error state.
failed_modify() { kinds fails_to_modify; }
fails_to_modify() {
	local n
	for n in 1 2 4; do
		must store "$P/fail_modify" "$n"
		within 30 must store "$C/maps/m/enable" 0
		[ "$(show "$P/fail_modify")" -lt "$n" ] || bad "no queue pair was moved to the error state"
		must map_on m
		moves
	done
	must store "$P/fail_modify" 0
}

# Two paths, each with its own device, one of which is taken away and comes back under I/O, again
# and again.
two_devices() { kinds on_two_devices; }
on_two_devices() {
	local n netdev other
	[ -e /sys/class/infiniband/rxe1 ] || skip "there is no second device"
	other=$(ip -4 -o addr show dev "$(rxe_netdev rxe1)" | awk '{sub("/.*", "", $4); print $4; exit}')
	must port_add q "$other"
	must path_add m b "$other"
	wait_for 60 live b || bad "path b is '$(show "$C/maps/m/paths/b/state")'"
	fio --name=load --filename="$DEV" --direct=1 --ioengine=io_uring --rw=randrw --bsrange=4k-256k --iodepth=16 --size=8m \
		--verify=crc32c --verify_fatal=1 --verify_backlog=32 --time_based --runtime=600 --output=/run/fio.out &
	LOAD=$!
	for n in rxe1 rxe0 rxe1; do
		netdev=$(rxe_netdev "$n")
		must within 30 rdma link delete "$n"
		sleep 1
		must rxe_add "$netdev" "$n"
		wait_for 60 live a && wait_for 60 live b || bad "after $n: path a is '$(show "$C/maps/m/paths/a/state")', b '$(show "$C/maps/m/paths/b/state")'"
	done
	kill -0 "$LOAD" 2>/dev/null || bad "fio has ended"
	kill -INT "$LOAD"
	wait "$LOAD"
	fio_worked
	must path_rm m b
}
live() { [ "$(show "$C/maps/m/paths/$1/state")" = live ]; }

# lost_acks: what the server has done is done again, or not, and no data are lost.
lost_acks() { kinds loses_acks; }
loses_acks() {
	local n
	for n in 1 2 3 4 7 20 50; do
		must store "$P/lose_ack" "$n"
		moves
		is "messages until one is not acknowledged" "$(show "$P/lose_ack")" 0
	done
}

# lost_mads: a path that is lost comes back, though it has to try more than once.
lost_mads() { kinds loses_mads; }
loses_mads() {
	local n
	for n in 1 2 3; do
		must store "$P/drop_mads" 10
		must store "$P/lose_ack" 3
		moves
		must store "$P/drop_mads" 0
	done
}

# across: the client is in another network namespace, with the second device. The connection manager
# takes no connection from an address of its own namespace over another device.
across() {
	local mac
	[ -e /sys/class/infiniband/rxe1 ] || skip "there is no second device"
	FAR=$(rxe_netdev rxe1) FAR_ADDR=$(ip -4 -o addr show dev "$(rxe_netdev rxe1)" | awk '{print $4; exit}')
	NEAR=$(rxe_netdev)
	mac=$(<"/sys/class/net/$FAR/address")
	at_exit 'clean; come_back'
	must rdma link delete rxe1
	must ip netns add far
	must ip link set "$FAR" netns far
	must ip -n far addr add 10.9.0.99/24 dev "$FAR"
	must ip -n far link set "$FAR" up
	# Nothing is sent on the netdevs, so nobody asks who has these addresses.
	must ip -n far neigh replace "$FARBLK_SERVER" lladdr "$(<"/sys/class/net/$NEAR/address")" nud permanent dev "$FAR"
	must ip neigh replace 10.9.0.99 lladdr "$mac" nud permanent dev "$NEAR"
	must far rxe_add "$FAR" rxe1
	kinds_across
}
# far COMMAND...: runs it there.
far() { nsenter --net=/run/netns/far bash -c ". '$HERE/lib.sh'; FARBLK_SERVER=$FARBLK_SERVER; ${*@Q}"; }
come_back() {
	rdma link delete rxe1
	ip neigh del 10.9.0.99 dev "$NEAR"
	ip -n far link set "$FAR" netns 1
	ip netns del far
	ip addr add "$FAR_ADDR" dev "$FAR" && ip link set "$FAR" up && rxe_add "$FAR" rxe1
}
kinds_across() {
	for KIND in $KINDS; do
		case $KIND in
		ram) must serve e 16M ;;
		block) back 'null_disk fbm 16' && must serve_block e "$BACK" ;;
		esac
		must far map m e
		DEV=/dev/$(show "$C/maps/m/device")
		is "the device of the path" "$(show "$C/maps/m/paths/a/device")" rxe1
		is "the device of the port" "$(show "$C/ports/p/device")" rxe0
		moves
		must unmap m
		clean
	done
}

# unplugged: the function under the device goes, and is found again. The map goes on.
unplugged() { kinds is_unplugged; }
is_unplugged() {
	local dev netdev
	dev=$(readlink -f /sys/class/infiniband/rxe0/device)
	[ -e "$dev/remove" ] || skip "the device is no PCI function"
	netdev=$(rxe_netdev)
	random /run/data 4
	must direct_write /run/data "$DEV"
	must within 20 store "$dev/remove" 1
	[ ! -e /sys/class/infiniband/rxe0 ] || bad "the device is still there"
	must store /sys/bus/pci/rescan 1
	must rxe_add "$netdev"
	within 30 must direct_read "$DEV" /run/back count=4
	must cmp /run/data /run/back
}

# What a scenario that ended early has armed must not hit the next one.
clean_all() {
	local fault
	for fault in remove_at fatal_at lose_ack lose_sent lose_cqe fail_post fail_inv fail_modify drop_mads; do store "$P/$fault" 0; done
	clean
}

scenario plain "the device as it is"
scenario no_srq "no shared receive queues"
scenario no_srq_ops "shared receive queues by number only"
scenario no_remote_inv "no SEND with invalidation, though it was promised"
scenario no_mem_mgt "a server whose device registers nothing"
scenario bounced "bounce buffers for all memory"
scenario iwarp "the rules of iWARP for RDMA READs"
scenario sinks_noticed "a module that does not keep them"
scenario few_segments "three segments per work request"
scenario one_segment "one segment per RDMA READ"
scenario few_pages "regions of few pages"
scenario few_requests "queues that are shorter than a map asks for"
scenario slabs "slabs of a device with few pages per region, and with many"
scenario small_pages "regions of pages of 4 KiB or 2 MiB, whatever a page of the kernel is"
scenario one_read "one RDMA READ at a time"
scenario few_reads "no more RDMA READs than the device does at a time"
scenario few_qps "few queue pairs"
scenario one_vector "one completion vector"
scenario no_last_wqe "no event for the last receive"
scenario hard "completion handlers in hard interrupts"
scenario wire "a wire that takes its time"
scenario poll_us "a server that looks for commands before it sleeps"
scenario failed_post "sends that fail to be posted"
scenario slow_registration "registrations that take their time"
scenario failed_invalidation "answers that fail to invalidate a key"
scenario lost_sent "a completion of an answered command that is lost"
is_short || scenario lost_completion "completions that never appear"
scenario late "completions that are late"
is_short || scenario sealed "I/O with protection"
scenario removed "the device is removed at any of its sends"
scenario fatal "a device that fails for good"
is_short || scenario fatal_silent "a device that stops, and does not say so"
scenario failed_modify "queue pairs that are not moved to the error state"
scenario two_devices "two devices, one of which goes and comes back"
scenario lost_acks "messages whose acknowledgment is lost"
scenario lost_mads "management datagrams that are lost"
scenario across "one device reaches the other one"
scenario unplugged "the PCI function is unplugged"
run_scenarios
