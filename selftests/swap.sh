#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Swap on an export, more in use than there is memory, and one of two paths that is lost: to go on
# with the other one takes no memory. With none left, the kernel's MAD layer waits for memory, and
# that for I/O: all_lost needs the RDMA core that upstream/core mends (FARBLK_CORE=patched).
# FARBLK_SWAP_FAULTS is how many times.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1
FAULTS=${FARBLK_SWAP_FAULTS:-6}
# MiB of the disk, and of the memory that is left to the programs.
SWAP=384
LEFT=128

# hog: leaves LEFT MiB of memory; none of what it takes can be swapped. (Pages of 2 MiB.)
hog() { echo $((($(awk '/^MemAvailable:/ {print $2}' /proc/meminfo) / 1024 - LEFT) / 2)) >/proc/sys/vm/nr_hugepages; }
swapped() { awk '/^Swap(Total|Free):/ {kib = $2 - kib} END {print -kib / 1024}' /proc/meminfo; }

# uevents on: all the time somebody sends uevents, and somebody else listens: who sends one waits
# for memory, with the lock held that every uevent takes. uevents off: ends that.
uevents() {
	if [ "$1" = off ]; then
		[ -z "${NOISE:-}" ] || kill $NOISE
		NOISE=
		return
	fi
	python3 -c 'import socket
heard = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15)
heard.bind((0, 1))
while True:
    try:
        heard.recv(1 << 16)
    except OSError:
        pass' &
	NOISE=$!
	while sleep 0.01; do echo change >/sys/module/farblk/uevent; done &
	NOISE+=" $!"
}

# want on: whenever no path is live and there is /run/want, all memory is wanted, see want.py. want
# off: ends that.
want() {
	local limit
	if [ "$1" = off ]; then
		rm -f /run/want
		[ -z "${WANT:-}" ] || kill -9 "$WANT"
		WANT=
		return
	fi
	for limit in root_maxbytes root_maxkeys; do echo $((64 << 20)) >/proc/sys/kernel/keys/$limit; done
	: >/run/want.out
	python3 "$HERE/want.py" /run/want "$C"/maps/m/paths/*/state >/run/want.out 2>&1 &
	WANT=$!
	wait_for 30 grep -q begun /run/want.out || die "want.py: $(cat /run/want.out)"
}

# swap EXPORT FAULT: a line that the server makes export e with, and a function, which is told how
# many faults there were with it.
swap() {
	local pid n before
	agent_only
	needs stress-ng mkswap swapon python3
	[ -e /proc/swaps ] || skip "the kernel has no swap"
	must remote "port_add p0 $(address server 0) && port_add p1 $(address server 1) && $1"
	must mkdir "$C/maps/m"
	must settings "$C/maps/m" export=e "${@:3}"
	for n in 0 1; do must path_add m "$(path_name $n)" "$(address server $n)"; done
	must map_on m
	all_live_in "$AGAIN"
	must mkswap "$DEV" >/dev/null
	must swapon "$DEV"
	uevents on
	[ "$2" != all ] || want on
	trap 'uevents off; want off; net pass; echo 0 >/proc/sys/vm/nr_hugepages; swapoff "$DEV"' EXIT
	# rdma_rxe and the network device take memory for each packet.
	echo $((32 * 1024)) >/proc/sys/vm/min_free_kbytes
	must hog
	stress-ng --vm 2 --vm-bytes $((LEFT + SWAP / 2))M --vm-keep --vm-method zero-one --verify --timeout 3600 >/run/stress.out 2>&1 &
	pid=$!
	wait_for 120 uses $((SWAP / 4)) || die "only $(swapped) MiB are swapped: $(cat /run/stress.out)"
	for ((n = 1; n <= FAULTS; n++)); do
		before=$(reconnects)
		$2 $n
		note "$n: $2; $(swapped) MiB are swapped; $(states)"
		all_live_in $((AGAIN * 3))
		note "$n: $(($(reconnects) - before)) reconnects"
		sleep 2
		kill -0 $pid || die "stress-ng has ended: $(cat /run/stress.out)"
		# Of a write the program hears nothing: its page stays in memory.
		! dmesg | grep -m 1 "error on swap-device" || die "I/O has failed"
	done
	kill -INT $pid
	wait_for 120 ended $pid || die "stress-ng does not end"
	wait $pid || bad "exit code $? of stress-ng: $(cat /run/stress.out)"
	! grep -i "fail: " /run/stress.out || bad "stress-ng found wrong data"
	uevents off
	want off
	echo 0 >/proc/sys/vm/nr_hugepages
	must swapoff "$DEV"
	trap 'net pass' EXIT
	must unmap m
}
# This host may not be able to do anything meanwhile: the server does it.
silence() { must remote "net cut $1 && sleep 4 && net pass"; }
port() { must remote "store $C/ports/p$1/enable 0; sleep 4; store $C/ports/p$1/enable 1"; }
uses() { [ "$(swapped | cut -d. -f1)" -ge "$1" ]; }
# one NUMBER: of the paths one is lost, in this way or that.
one() { if [ $(($1 % 2)) = 0 ]; then port $(($1 / 2 % 2)); else silence $(($1 / 2 % 2)); fi; }
# all NUMBER: all paths are lost.
all() {
	: >/run/want
	must remote "net cut 0 && net cut 1 && sleep 12 && net pass"
	note "$(tail -n 1 /run/want.out)"
	rm /run/want
}
on_ram() { swap "export_ram e ${SWAP}M" one; }
on_block() {
	back "null_disk swap $SWAP"
	swap "export_block e $BACK" one
}
all_lost() {
	[ -n "${FARBLK_CORE:-}" ] || skip "the stock RDMA core may wait for memory until I/O fails, see upstream/core"
	swap "export_ram e ${SWAP}M" all no_path_timeout_ms=40000
}

scenario on_ram "swap on memory, while one path or the other is lost"
scenario on_block "swap on a disk, while one path or the other is lost"
scenario all_lost "swap on memory, while all paths are lost"
run_scenarios
