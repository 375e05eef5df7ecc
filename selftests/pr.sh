#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Persistent reservations: maps of one export fence each other.
. "$(dirname "$0")/lib.sh"

# two LINE: A and B are the disks of two maps of the export of what LINE makes.
two() {
	not_local
	needs python3
	back "$1"
	must serve_block e "$BACK" max_clients=3 "${@:2}"
	must map a e no_path_timeout_ms=20000
	A=$DEV
	must map b e no_path_timeout_ms=20000
	B=$DEV
}
pr() { python3 "$HERE/pr.py" "$@"; }
# writes DEVICE, reads DEVICE: OK or the error.
writes() { errno_of dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct conv=notrunc status=none; }
reads() { errno_of dd if="$1" of=/dev/null bs=4k count=1 iflag=direct status=none; }
CONFLICT="?(Invalid exchange)"

types() {
	local type registrant other
	needs_module null_blk
	two "null_disk fbn 8"
	must map c e
	is "register" "$(pr "$A" register 0 10)" OK
	is "register the other" "$(pr "$B" register 0 20)" OK
	is "register with a wrong old key" "$(pr "$B" register 21 22)" CONFLICT
	is "keys" "$(pr "$DEV" keys)" "2 10 20"
	is "no reservation" "$(pr "$B" reservation)" "0 0"
	while read -r type registrant other; do
		is "type $type" "$(pr "$A" reserve 10 "$type")" OK
		is "type $type: the holder" "$(writes "$A") $(reads "$A")" "OK OK"
		is "type $type: a registrant writes" "$(writes "$B")" "${registrant/no/$CONFLICT}"
		is "type $type: another one writes" "$(writes "$DEV")" "$CONFLICT"
		is "type $type: another one reads" "$(reads "$DEV")" "${other/no/$CONFLICT}"
		is "type $type: who holds it" "$(pr "$DEV" reservation)" "$([ "$type" -ge 5 ] && echo 0 || echo 10) $type"
		is "type $type: release" "$(pr "$A" release 10 "$type")" OK
		is "type $type: all write" "$(writes "$A") $(writes "$B") $(writes "$DEV")" "OK OK OK"
	done <<-END
		1 no OK
		2 no no
		3 OK OK
		4 OK no
		5 OK OK
		6 OK no
	END
	is "an unknown type" "$(pr "$A" reserve 10 7)" EINVAL
	is "clear" "$(pr "$B" clear 20)" OK
	is "keys after that" "$(pr "$A" keys)" "3"
	must unmap c
	must unmap b
	must unmap a
}

# What the preempted one has sent ends before the answer, and nothing of it comes later.
preempts() {
	local pid written
	needs_module null_blk
	two "null_disk fbn 8 irqmode=2 completion_nsec=100000000"
	is "register" "$(pr "$A" register 0 10) $(pr "$B" register 0 20)" "OK OK"
	is "reserve" "$(pr "$A" reserve 10 3)" OK
	fio --name=a --filename="$A" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=8 --time_based --runtime=3600 --output=/run/fio.out 2>/dev/null &
	pid=$!
	at_exit "kill $pid 2>/dev/null"
	sleep 1
	is "preempt" "$(pr "$B" preempt 20 10 3)" OK
	written=$(remote "io $BACK writes")
	is "who holds it" "$(pr "$B" reservation)" "20 3"
	is "keys" "$(pr "$B" keys)" "3 20"
	is "the fenced one" "$(writes "$A") $(reads "$A")" "$CONFLICT OK"
	wait $pid && bad "fio did not fail"
	is "writes after the answer" "$(remote "io $BACK writes")" "$written"
	is "the holder" "$(writes "$B")" OK
	is "register again" "$(pr "$A" register 0 11)" OK
	is "a registrant writes" "$(writes "$A")" OK
	must unmap b
	must unmap a
}

# Registrations stay when the map goes, and when the export is disabled.
lasts() {
	needs_module null_blk
	two "null_disk fbn 8"
	is "register" "$(pr "$A" register 0 10)" OK
	is "reserve" "$(pr "$A" reserve 10 1)" OK
	must remote "store $C/ports/p/enable 0 && store $C/ports/p/enable 1"
	wait_for 20 map_is a live && wait_for 20 map_is b live || bad "the maps do not come back"
	is "after the loss of the paths" "$(writes "$A") $(writes "$B")" "OK $CONFLICT"
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/enable 1"
	wait_for 20 map_is a live && wait_for 20 map_is b live || bad "the maps do not come back"
	is "after the export was disabled" "$(writes "$A") $(writes "$B") $(pr "$B" reservation)" "OK $CONFLICT 10 1"
	must unmap b
	must unmap a
}
map_is() { [ "$(show "$C/maps/$1/state")" = "$2" ]; }

protected() {
	needs_module null_blk
	not_local
	needs python3
	back "null_disk fbn 8"
	must serve_block e "$BACK" protection=crc32c
	must map m e protection=crc32c
	is "register" "$(pr "$DEV" register 0 10)" OK
	is "reserve" "$(pr "$DEV" reserve 10 6)" OK
	is "keys" "$(pr "$DEV" keys)" "1 10"
	is "the holder" "$(writes "$DEV")" OK
	must unmap m
}

none() {
	not_local
	needs python3
	must serve r 8M
	must map m r
	is "RAM" "$(pr "$DEV" register 0 10) $(pr "$DEV" keys)" "EOPNOTSUPP EOPNOTSUPP"
	must unmap m
}

scenario types "each type leaves to each map what it should"
scenario preempts "a map that is preempted writes nothing after the answer"
scenario lasts "registrations outlive paths and a disabled export"
scenario protected "reservations with protection"
scenario none "RAM has none"
run_scenarios
