#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Protected I/O of block exports: with protection=seal nobody in between reads, changes or repeats
# anything unnoticed, with crc32c no change on the way goes unnoticed.
. "$(dirname "$0")/lib.sh"

# sealed PROTECTION SIZE [LIMIT]...: a map m of a disk of SIZE MiB with that protection, and DEV.
sealed() {
	local key
	key=$(new_key)
	needs_module null_blk
	back "null_disk fbs $2 blocksize=512 discard=1"
	must serve_block e "$BACK" allow_any_host=0 "protection=$1"
	must admit e "$(show "$C/host_name")" "$key"
	must map m e heartbeat_ms=10000 "protection=$1" "key=$key" "${@:3}"
}

# unsealed [RECONNECTS]: takes it away again; nothing was forged.
unsealed() {
	is "state" "$(show "$C/maps/m/state")" live
	is "reconnects" "$(show "$C/maps/m/paths/a/reconnects")" "${1:-0}"
	is "forged, as the server counts" "$(remote "counter $COUNTERS forged")" 0
	is "forged, as the map counts" "$(counter "$D/client/m/counters" forged)" 0
	is "violations" "$(remote "counter $COUNTERS violations")" 0
	no_error maps/m
	must unmap m
	must remote "store $C/exports/e/enable 0 && rmdir $C/exports/e/hosts/* $C/exports/e && disks_clean"
}

# written_and_read OPTION...: what fio writes so it finds again.
written_and_read() {
	must fio --name=v --filename="$DEV" --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --size=4m "$@"
}

# --- that I/O works -------------------------------------------------------------------------------

sizes() {
	local protection inline
	for protection in crc32c seal; do
		for inline in 0 4K 16K; do
			# The short test has each size and each protection, but not all pairs.
			case $protection-$inline in crc32c-0 | crc32c-16K | seal-4K) ! is_short || continue ;; esac
			sealed $protection 32 queues=2 inline_size=$inline
			# Of one block to more than a bounce buffer.
			written_and_read --rw=randrw --bsrange=512-256k --iodepth=8
			written_and_read --rw=write --bs=4k --iodepth=32
			must mkfs.ext4 -q "$DEV"
			must fsck.ext4 -fn "$DEV"
			must blkdiscard -f "$DEV"
			must cmp -n 1M "$DEV" /dev/zero
			note "$protection, inline data of $inline"
			unsealed
		done
	done
}

# gone_and_back: the server ends all sessions, and offers the export again.
gone_and_back() {
	local before
	before=$(show "$C/maps/m/paths/a/reconnects")
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/enable 1"
	wait_for 30 reconnected "$before" || bad "the map does not come back: $(show "$C/maps/m/last_error")"
}
reconnected() { [ "$(show "$C/maps/m/paths/a/reconnects")" -gt "$1" ] && [ "$(show "$C/maps/m/state")" = live ]; }

# I/O goes on with other keys when a path comes back, and numbers begin anew.
losses() {
	local protection writes
	for protection in crc32c seal; do
		sealed $protection 32 queues=2
		load
		for _ in 1 2 3; do
			gone_and_back
			writes=$(io "$DEV" writes)
			wait_for 20 more_than $((writes + 20)) || bad "there is no I/O any more"
		done
		kill -INT "$FIO" || bad "fio has ended"
		wait "$FIO"
		fio_worked
		unsealed 3
	done
}

# --- what hostile peers can do --------------------------------------------------------------------

# hostile_start: exports of each protection, with what hostile_seal.py wants to have there, and a
# map m that does verified I/O meanwhile.
hostile_start() {
	local protection
	not_local
	needs python3
	needs_user_rdma
	needs_module null_blk
	KEY=$(new_key) OTHER=$(new_key) OWN=$(new_key)
	export KEY OTHER
	for protection in seal crc32c none; do
		back "null_disk fb$protection 32 blocksize=512"
		must serve_block $protection "$BACK" max_clients=1024 allow_any_host=0 protection=$protection
		must admit $protection hostile "$KEY"
	done
	back "null_disk fbopen 32 blocksize=512"
	must serve_block open "$BACK" max_clients=1024 protection=crc32c
	must admit none other "$OTHER"
	must admit seal bare
	must admit seal "$(show "$C/host_name")" "$OWN"
	must map m seal queues=2 heartbeat_ms=10000 protection=seal "key=$OWN"
	load
}

# load: verified I/O on DEV from now on, in its first 16 MiB.
load() {
	fio --name=load --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bsrange=4k-64k --size=16m --iodepth=4 --rate_iops=50 --time_based \
		--runtime=3600 --verify=crc32c --verify_fatal=1 --verify_backlog=16 --max_latency=$((30 * ${FARBLK_PATIENCE:-1}))s >/run/fio.out 2>&1 &
	FIO=$!
	at_exit "kill $FIO 2>/dev/null"
	wait_for 30 more_than 0 || die "fio does nothing: $(tail -n 3 /run/fio.out)"
}
more_than() { [ "$(io "$DEV" writes)" -gt "$1" ]; }

# counted WORD: what the server has counted so.
counted() { remote "counter $COUNTERS $1"; }

# hostile GROUP: the cases of that group, and what the server counts.
hostile() {
	local forged violations rc count
	forged=$(counted forged) violations=$(counted violations)
	python3 "$HERE/hostile_seal.py" "$FARBLK_SERVER" "$1" 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	[ "$rc" != 4 ] || skip "user space has no RDMA"
	[ "$rc" = 0 ] || wrong "hostile_seal.py $1 ends with $rc"
	count=$(sed -n '$s/^violations //p' /run/hostile.out)
	forged=$(($(counted forged) - forged)) violations=$(($(counted violations) - violations))
	case $1 in
	violation) same_data "what is counted after $1" "forged $forged violations $violations" "forged 0 violations $count" ;;
	either) same_data "what is counted after $1" $((forged + violations)) "$count" ;;
	*) same_data "what is counted after $1" "forged $forged violations $violations" "forged $count violations 0" ;;
	esac
}

# unharmed: the map has gone on all the time, and the server has nothing of the hostile one any
# more.
unharmed() {
	local writes
	writes=$(io "$DEV" writes)
	wait_for 20 more_than "$writes" || bad "there is no I/O any more"
	kill -INT "$FIO" || bad "fio has ended"
	wait "$FIO"
	fio_worked
	is state "$(show "$C/maps/m/state")" live
	is reconnects "$(show "$C/maps/m/paths/a/reconnects")" 0
	no_error maps/m
	wait_for 30 alone || bad "what the server still has:"$'\n'"$(remote "grep . $C/exports/*/clients; cat $D/server/connections")"
	must unmap m
}
alone() { remote "awk '{n += \$1} END {exit n != 1}' $C/exports/*/clients && ! grep -q 'host hostile' $D/server/connections"; }

client() {
	local group
	hostile_start
	for group in kept logins forged raced violation either; do hostile $group; done
	unharmed
}

# hostile_server GROUP...: the cases of these groups; the server is a program on this host.
hostile_server() {
	local rc group
	not_local
	needs python3
	needs_user_rdma
	KEY=$(new_key)
	export KEY
	must server_address 10.9.0.77
	must server_address 10.9.0.78
	for group; do
		python3 "$HERE/hostile_server_seal.py" 10.9.0.77 10.9.0.78 "$group" 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
		rc=${PIPESTATUS[0]}
		[ "$rc" != 4 ] || break
		[ "$rc" = 0 ] || wrong "hostile_server_seal.py $group ends with $rc"
	done
	ip addr del 10.9.0.77/24 dev "$(rxe_netdev)"
	ip addr del 10.9.0.78/24 dev "$(rxe_netdev)"
	[ "$rc" != 4 ] || skip "user space has no RDMA"
}
server() { hostile_server kept frames data endless; }
program() { hostile_server program; }

# --- what is on the wire --------------------------------------------------------------------------

# A word that is in the file again and again: each piece of 31 bytes has it.
TEXT=a-word-of-a-file

# on_wire PROTECTION: a file goes to a disk with that protection, and back, three times. WIRE is
# then what was seen of it.
on_wire() {
	local key seen
	key=$(new_key)
	rm -f /run/wire.*
	back "null_disk fbw 16 blocksize=512"
	must serve_block e "$BACK" allow_any_host=0 "protection=$1"
	must admit e "$(show "$C/host_name")" "$key"
	must map m e "protection=$1" "key=$key"
	python3 "$HERE/wire.py" "$(rxe_netdev)" $TEXT /run/wire.stop >/run/wire.out &
	seen=$!
	at_exit "touch /run/wire.stop"
	must wait_for 30 grep -q ready /run/wire.out
	must mkfs.ext4 -q "$DEV"
	mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	yes $TEXT | tr -d '\n' | head -c 256K >/run/wire.file
	for _ in 1 2 3; do
		must dd if=/run/wire.file of=/run/mnt/file bs=64k oflag=direct conv=notrunc status=none
		must dd if=/run/wire.file of=/run/mnt/file bs=4k oflag=direct conv=notrunc count=16 status=none
		must dd if=/run/mnt/file of=/run/wire.back bs=64k iflag=direct status=none
		cmp /run/wire.file /run/wire.back || wrong "another file comes back"
		must dd if=/run/mnt/file of=/run/wire.back bs=4k count=16 iflag=direct status=none
	done
	must umount /run/mnt
	touch /run/wire.stop
	wait $seen || bad "wire.py ends with $?"
	WIRE=$(tail -n 1 /run/wire.out)
	note "$1: $WIRE"
	must unmap m
	must remote "store $C/exports/e/enable 0 && rmdir $C/exports/e/hosts/* $C/exports/e && disks_clean"
}

wire() {
	local protection
	local -a seen
	not_local
	needs python3
	two_hosts || skip "there is no wire"
	needs_module null_blk
	for protection in none crc32c seal; do
		on_wire $protection
		read -r -a seen <<<"$WIRE"
		[ "${seen[1]:-0}" -gt $((3 * 320 << 10)) ] || bad "$protection: the file was not seen to go"
		[ "${seen[4]:-0}" -gt $((3 * 320 << 10)) ] || bad "$protection: the file was not seen to come"
		if [ $protection = seal ]; then
			is "packets with the text of the file that went" "${seen[2]}" 0
			is "packets with the text of the file that came" "${seen[5]}" 0
			is "pieces of data that were there before" "${seen[7]}" 0
		else
			[ "${seen[2]}" -gt 0 ] || bad "$protection: no packet that went has the text of the file"
			[ "${seen[5]}" -gt 0 ] || bad "$protection: no packet that came has the text of the file"
			[ "${seen[7]}" -gt 0 ] || bad "$protection: no data were there before"
		fi
	done
}

scenario sizes "I/O of all sizes, by each way in which data go"
scenario losses "the server goes and comes back under I/O"
scenario client "a client that breaks frames, the data behind them, and their numbers"
scenario server "a server that does the same, and rewrites data after its answer"
scenario program "a program that changes memory while it is written or read"
scenario wire "with seal no packet has the text of a file, nor the same data twice"
run_scenarios
