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

# hosts LINE: A is the disk of a map of this host, HOST; B and DEV are those of two maps of another
# one. Only these two are admitted.
hosts() {
	not_local
	needs python3
	needs_module null_blk
	HOST=$(show "$C/host_name")
	back "$1"
	must serve_block e "$BACK" max_clients=4 allow_any_host=0
	must admit e "$HOST"
	must admit e other
	must map a e
	A=$DEV
	map_other b
	B=$DEV
	map_other c
}
# map_other NAME: a map of the other host.
map_other() {
	at_exit "store $C/host_name $HOST"
	must store "$C/host_name" other
	must map "$1" e no_path_timeout_ms=20000
	must store "$C/host_name" "$HOST"
}
registrants_are() { [ "$(registrants)" = "$1" ]; }
registrants() { remote "cat $C/exports/e/pr_registrants" | paste -s -d ,; }

# A host that is not admitted any more has no registrations, also if it is admitted again.
standing() {
	local way
	hosts "null_disk fbn 8"
	is "register" "$(pr "$A" register 0 10)" OK
	for way in "store $C/exports/e/evict other" "store $C/exports/e/hosts/other/access none" "rmdir $C/exports/e/hosts/other"; do
		is "register the maps of the other host" "$(pr "$B" register 0 20) $(pr "$DEV" register 0 30)" "OK OK"
		is "reserve" "$(pr "$B" reserve 20 1)" OK
		is "registrants" "$(registrants)" "$HOST 0xa,other 0x14 write-exclusive,other 0x1e"
		is "this host" "$(writes "$A")" "$CONFLICT"
		must remote "$way"
		is "registrants after $way" "$(registrants)" "$HOST 0xa"
		is "keys" "$(pr "$A" keys | cut -s -d ' ' -f 2-) $(pr "$A" reservation)" "10 0 0"
		is "this host after that" "$(writes "$A")" OK
		wait_for 20 map_is b evicted && wait_for 20 map_is c evicted || bad "the maps go on"
		must admit e other
		is "registrants when it is admitted again" "$(registrants)" "$HOST 0xa"
		is "reserve" "$(pr "$A" reserve 10 1)" OK
		must unmap b
		must unmap c
		map_other b
		B=$DEV
		map_other c
		is "the other host" "$(writes "$B") $(pr "$B" reserve 20 1)" "$CONFLICT CONFLICT"
		is "release" "$(pr "$A" release 10 1)" OK
	done
	# Of a host whose maps are gone there is nothing but its registrations.
	is "register" "$(pr "$B" register 0 20)" OK
	is "reserve" "$(pr "$B" reserve 20 1)" OK
	must unmap b
	must unmap c
	must remote "store $C/exports/e/evict other"
	is "registrants after evict" "$(registrants)" "$HOST 0xa"
	is "evict, again" "$(remote "errno_of store $C/exports/e/evict other")" ENOENT
	# So it is while the export is disabled.
	map_other b
	is "register" "$(pr "$DEV" register 0 20)" OK
	must unmap b
	must remote "store $C/exports/e/enable 0"
	is "registrants of a disabled export" "$(registrants)" "$HOST 0xa,other 0x14"
	must remote "rmdir $C/exports/e/hosts/other"
	is "registrants without the host's entry" "$(registrants)" "$HOST 0xa"
	must unmap a force
}

# A host without an entry stands as long as any host is admitted.
any_host() {
	hosts "null_disk fbn 8"
	is "register" "$(pr "$A" register 0 10) $(pr "$B" register 0 20)" "OK OK"
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/allow_any_host 1 && store $C/exports/e/enable 1"
	must remote "rmdir $C/exports/e/hosts/other"
	is "registrants" "$(registrants)" "$HOST 0xa,other 0x14"
	wait_for 20 map_is b live || bad "the map of a host that may come in like any is $(show "$C/maps/b/state")"
	is "a map of it" "$(writes "$B")" OK
	must remote "store $C/exports/e/evict other"
	is "registrants after evict" "$(registrants)" "$HOST 0xa"
	must unmap b
	must unmap c
	map_other b
	is "register" "$(pr "$DEV" register 0 20)" OK
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/allow_any_host 0"
	is "registrants when only hosts with an entry are admitted" "$(registrants)" "$HOST 0xa"
	must unmap b force
	must unmap a force
}

# What the administrator clears is free for all, and disturbs nobody.
clears() {
	local pid
	hosts "null_disk fbn 8"
	is "register" "$(pr "$A" register 0 10) $(pr "$B" register 0 20)" "OK OK"
	is "reserve" "$(pr "$A" reserve 10 2)" OK
	is "the other host" "$(writes "$B")" "$CONFLICT"
	fio --name=a --filename="$A" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=8 --time_based --runtime=3 --output=/run/fio.out 2>/dev/null &
	pid=$!
	sleep 1
	is "clear of what is reserved" "$(remote "errno_of store $C/exports/e/pr_clear 1")" EBUSY
	is "why" "$(remote "cat $C/exports/e/refusal")" \
		"EBUSY pr_clear: the export is reserved; force clears it"
	is "registrants after that" "$(registrants)" "$HOST 0xa exclusive-access,other 0x14"
	is "the other host after that" "$(writes "$B")" "$CONFLICT"
	must remote "store $C/exports/e/pr_clear force"
	is "registrants" "$(registrants)" ""
	is "keys" "$(pr "$A" keys) $(pr "$A" reservation)" "3 0 0"
	is "the other host after that" "$(writes "$B")" OK
	must wait $pid
	fio_worked
	is "reserve with a key that is gone" "$(pr "$A" reserve 10 1)" CONFLICT
	is "register and reserve" "$(pr "$B" register 0 20) $(pr "$B" reserve 20 1)" "OK OK"
	must unmap a
	must unmap b
	must unmap c
	# Nobody has to be there.
	is "clear of what is reserved" "$(remote "errno_of store $C/exports/e/pr_clear 1")" EBUSY
	must remote "store $C/exports/e/pr_clear force"
	is "registrants" "$(registrants)" ""
	# Registrants alone fence nobody.
	map_other b
	is "register" "$(pr "$DEV" register 0 20)" OK
	must remote "store $C/exports/e/pr_clear 1"
	is "registrants" "$(registrants)" ""
	is "refusal" "$(remote "cat $C/exports/e/refusal")" ""
	must unmap b
}

# An administrator is between the one who preempts and the one who is preempted, whose I/O takes
# long.
withdrawn() {
	local pid written late=
	hosts "null_disk fbn 8 irqmode=2 completion_nsec=2000000000"
	is "register" "$(pr "$A" register 0 10) $(pr "$B" register 0 20)" "OK OK"
	is "reserve" "$(pr "$A" reserve 10 3)" OK
	writer_on "$A"
	# The victim goes: the answer still waits for its I/O, as does a report.
	pr "$B" preempt 20 10 3 >/run/preempt.out &
	pid=$!
	wait_for 20 registrants_are "other 0x14 write-exclusive-reg-only" || bad "nothing is preempted"
	must remote "rmdir $C/exports/e/hosts/$HOST"
	is "registrants" "$(registrants)" "other 0x14 write-exclusive-reg-only"
	is "keys" "$(pr "$DEV" keys)" "3 20"
	written=$(remote "io $BACK writes")
	must wait $pid
	is "the one who preempts" "$(</run/preempt.out)" OK
	wait_for 20 map_is a evicted || bad "the map goes on"
	sleep 3
	is "writes after the answer" "$(remote "io $BACK writes")" "$written"
	writer_off
	must unmap a
	come_back
	# The victim went before: nobody is there to preempt, and the answers wait all the same.
	is "register" "$(pr "$A" register 0 10)" OK
	writer_on "$A"
	must remote "rmdir $C/exports/e/hosts/$HOST"
	is "keys" "$(pr "$B" keys | cut -s -d ' ' -f 2-)" 20
	written=$(remote "io $BACK writes")
	is "preempt" "$(pr "$B" preempt 20 10 3)" CONFLICT
	sleep 3
	is "writes after a report" "$(remote "io $BACK writes")" "$written"
	writer_off
	must unmap a
	come_back
	# The one who preempts goes: what it did stands, but for what it was for itself.
	is "register" "$(pr "$A" register 0 10)" OK
	writer_on "$A"
	pr "$B" preempt 20 10 3 >/run/preempt.out &
	pid=$!
	wait_for 20 registrants_are "other 0x14 write-exclusive-reg-only" || bad "nothing is preempted"
	ended $pid && late=1
	must remote "store $C/exports/e/evict other"
	is "registrants" "$(registrants)" ""
	wait $pid
	[ "$(</run/preempt.out)" != OK ] || [ -n "$late" ] || bad "one who is evicted while it waits has an answer"
	wait_for 20 map_is b evicted || bad "the map goes on"
	writer_off
	is "this host" "$(writes "$A") $(pr "$A" keys | cut -s -d ' ' -f 2-) $(pr "$A" reservation)" "OK  0 0"
	must unmap a
	must unmap b
	must unmap c
}
come_back() { must admit e "$HOST"; must map a e; A=$DEV; }
# writer_on DISK, writer_off: writes of which some are always under way.
writer_on() {
	fio --name=a --filename="$1" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=8 --time_based --runtime=3600 --output=/run/fio.out 2>/dev/null &
	WRITER=$!
	at_exit "kill $WRITER 2>/dev/null"
	sleep 3
}
writer_off() { kill "$WRITER" 2>/dev/null; wait "$WRITER"; }

# When a write of "none" has ended nothing of the host comes any more, whatever it is about to do.
comes_and_goes() {
	local pid round rounds=40
	hosts "null_disk fbn 8"
	must unmap b
	must unmap c
	must store "$C/host_name" other
	comes_again &
	pid=$!
	at_exit "kill $pid 2>/dev/null; store $C/host_name $HOST"
	is_short && rounds=6
	for ((round = 0; round < rounds; round++)); do
		must remote "store $C/exports/e/hosts/other/access rw"
		# In every other round it has registered by then, in the others it is anywhere.
		if ((round % 2)); then sleep 0.$((round % 8)); else wait_for 20 registrants_are "other 0x14" || bad "it does not register"; fi
		must remote "store $C/exports/e/hosts/other/access none"
		is "registrants" "$(registrants)" ""
		sleep 0.05
		is "registrants a moment later" "$(registrants)" ""
	done
	touch /run/comes.stop
	must wait $pid
	must unmap a
}
comes_again() {
	rm -f /run/comes.stop
	map_make b e no_path_timeout_ms=0
	while [ ! -e /run/comes.stop ]; do
		store "$C/maps/b/enable" 1 && for _ in 1 2 3; do pr "/dev/$(show "$C/maps/b/device")" register 0 20 1; done
		store "$C/maps/b/enable" force
	done &>/dev/null
	map_rm b
}

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
scenario standing "what is not admitted any more has no registrations"
scenario any_host "a host without an entry has registrations while any host is admitted"
scenario clears "the administrator clears all registrations"
scenario withdrawn "a host goes while one map preempts another one"
scenario comes_and_goes "a host that is not admitted any more registers nothing while it logs in"
scenario protected "reservations with protection"
scenario none "RAM has none"
run_scenarios
