#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The samples of samples/rdma: each does what it says, between two hosts or, where there is one, as
# its own peer, and leaves nothing. Their modules are in FARBLK_SAMPLES.
. "$(dirname "$0")/lib.sh"
PORT=4711

# insert NAME [PARAMETER=VALUE]...: loads that sample; at the end of the scenario it is not there.
insert() {
	at_exit "remove $1"
	insmod "$FARBLK_SAMPLES/$1.ko" "${@:2}"
}
# remove NAME: unloads it, if it is there. rmmod sleeps for ever if something of it is still in use.
remove() {
	[ -d "/sys/module/$1" ] || return 0
	rmmod "$1" >/run/rmmod.out 2>&1 3>&- 4>&- &
	wait_for 60 ended $! && [ ! -d "/sys/module/$1" ] || { bad "rmmod $1: $(cat /run/rmmod.out)"; return 1; }
}
# says NAME REGEX: the kernel's log has such a line of that sample, in this boot. there NAME REGEX:
# that of the server has.
says() { wait_for 30 said "$1" "$2" || bad "$1 did not say '$2', but: $(dmesg | grep -F "$1: " | tail -n 5)"; }
said() { dmesg | grep -qE "$1: $2\$"; }
there() { wait_for 30 remote "dmesg | grep -qE '$1: $2\$'" || bad "the server's $1 did not say '$2', but: $(remote "dmesg | grep -F '$1: ' | tail -n 5")"; }

# sample NAME CLIENT-SAYS SERVER-SAYS [PARAMETER=VALUE]...: one run of it; the parameters are the
# client's. What the server says when it is unloaded is looked for after that.
sample() {
	local name=rdma_$1 addr=$FARBLK_SERVER:$PORT
	if two_hosts; then
		at_exit "remote '! rmmod $name 2>/dev/null'"
		must remote "insmod $FARBLK_SAMPLES/$name.ko listen=$addr"
		must insert "$name" "connect=$addr" "${@:4}"
	else
		must insert "$name" "listen=$addr" "connect=$addr" "${@:4}"
	fi
	says "$name" "$2"
	must remove "$name"
	! two_hosts || must remote "rmmod $name"
	there "$name" "$3"
}

cm_lifecycle() { sample cm_lifecycle "the client was refused, then welcome, and has gone" "ended a connection, confirmed: true"; }
pingpong_rc() { sample pingpong_rc "1000 messages of 64 bytes, all as sent" "1000 messages were sent back"; }
# What is lost is sent again.
pingpong_uc() { sample pingpong_uc "1000 messages were answered, [0-9]+ sent again" "1[0-9]{3} messages were sent back"; }
pingpong_ud() { sample pingpong_ud "1000 messages were answered, [0-9]+ sent again" "1[0-9]{3} messages were sent back"; }
one_sided() { sample one_sided "24 bytes of the server were read and written" "a client has read and written 24 bytes"; }
atomics() { sample atomics "4 clients held the lock 25 times each" "a client has gone"; }
# write_imm: a file of some pieces, of which the last one is not full; both sides find its CRC.
write_imm() {
	local crc
	needs python3
	head -c 300001 /dev/urandom >/run/sent
	crc=$(python3 -c 'if 1:
		table = []
		for n in range(256):
		    for _ in range(8):
		        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
		    table.append(n)
		crc = 0xFFFFFFFF
		for byte in open("/run/sent", "rb").read():
		    crc = table[(crc ^ byte) & 255] ^ crc >> 8
		print("%08x" % (crc ^ 0xFFFFFFFF))')
	sample write_imm "300001 bytes were written, crc32c $crc" "300001 bytes in 19 pieces, crc32c $crc" file=/run/sent
}
srq() { sample srq "12 clients had 50 answers each" "a client sent 50 messages"; }

# A sample that cannot do its work is not loaded, and says by which error. What insmod makes of
# EINVAL and ENOENT is not their text.
refused() {
	local name=rdma_pingpong_rc
	ends "no address" "?(Invalid parameters)" insert $name
	ends "an address that is none" "?(Invalid parameters)" insert $name connect=there
	ends "an address twice" EEXIST insert $name "connect=$FARBLK_SERVER:$PORT" "connect=$FARBLK_SERVER:$PORT"
	ends "a port where nobody listens" ECONNREFUSED insert $name "connect=$FARBLK_SERVER:$PORT"
	ends "an address of nobody" EADDRNOTAVAIL insert $name listen=10.200.0.1:$PORT
	ends "no file" "?(Invalid parameters)" insert rdma_write_imm "connect=$FARBLK_SERVER:$PORT"
	ends "a file that is not there" "?(Unknown symbol in module)" insert rdma_write_imm "connect=$FARBLK_SERVER:$PORT" file=/run/none
	is "samples that are loaded" "$(ls -d /sys/module/rdma_{pingpong,write}_* 2>/dev/null)" ""
}

# device_removed: the device of a sample that listens, and of its clients, goes at once.
device_removed() {
	local dev address
	dev=$(rxe_netdev)
	address=$(ip -4 -o addr show dev "$dev" | awk '{sub("/.*", "", $4); print $4; exit}')
	must insert rdma_srq "listen=$address:$PORT" "connect=$address:$PORT"
	must insert rdma_pingpong_ud "listen=$address:$PORT" "connect=$address:$PORT"
	must within 30 rdma link delete rxe0
	must remove rdma_srq
	must remove rdma_pingpong_ud
	must rxe_add "$dev"
}

[ -d "${FARBLK_SAMPLES:-}" ] || skip "there are no samples (FARBLK_SAMPLES)"
scenario cm_lifecycle "a connection is refused, made and ended"
scenario pingpong_rc "messages over RC, back and forth"
scenario pingpong_uc "messages over UC, back and forth"
scenario pingpong_ud "datagrams, back and forth"
scenario one_sided "memory of the server is read and written"
scenario atomics "a lock and a counter in the server's memory"
scenario write_imm "a file, by WRITE with immediate data"
scenario srq "many clients with one shared receive queue"
scenario refused "what cannot work is not loaded"
scenario device_removed "the device goes, and takes the server along"
run_scenarios
