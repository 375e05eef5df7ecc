#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What an operator's command does while something hangs: enable, disable and force of a map end in
# bounded time, and force always wins.
. "$(dirname "$0")/lib.sh"
# Seconds that a command may take on a slow machine, and that enable may take, which waits 5 s for
# partitions if the disk hangs.
BOUND=10
ENABLE_BOUND=$((5 + BOUND))
M=$C/maps/m

# hanging_disk: the server exports a device of its own, which answers until hang, and again after
# resume.
hanging_disk() {
	needs_module dm-mod
	needs_module null_blk
	back "dm_disk hang \"0 32768 linear \$(null_disk fbh 16) 0\""
	must serve_block e "$BACK"
	at_exit resume
}
hang() { must remote "dmsetup suspend --noflush --nolockfs farblk-hang"; }
resume() { remote "dmsetup resume farblk-hang 2>/dev/null"; }

# order NAME FILE VALUE: writes in the background. outcome_is NAME ERRNO [SECONDS]: it has ended by
# then, and so.
order() {
	rm -f "/run/command-$1"
	(
		got=$(store "$2" "$3" 2>&1) && got=OK || got=$(errno_name "${got##*: }")
		echo "$got" >"/run/command-$1.new"
		mv "/run/command-$1.new" "/run/command-$1"
	) &
}
outcome_is() {
	wait_for "${3:-$BOUND}" [ -e "/run/command-$1" ] || die "$1 hangs"
	[[ $(<"/run/command-$1") =~ ^($2)$ ]] || bad "$1: $(<"/run/command-$1"), not $2: $(show "$M/refusal")"
}
# ends_so NAME FILE VALUE ERRNO [SECONDS]: both.
ends_so() { order "$1" "$2" "$3"; outcome_is "$1" "$4" "${5:-}"; }

state_is() { [ "$(show "$M/state")" = "$1" ]; }
no_clients() { [ "$(remote "show $C/exports/e/clients")" = 0 ]; }
# is_gone: nothing is left of the map, and the server knows.
is_gone() {
	is state "$(show "$M/state")" disabled
	is device "$(show "$M/device")" ""
	must map_rm m
	resume
	wait_for $BOUND no_clients || bad "the server still has $(remote "show $C/exports/e/clients") client(s)"
}

# The first read is never answered: the disk is there nevertheless, and goes as it came.
enable_hanging() {
	hanging_disk
	hang
	must map_make m e
	ends_so enable "$M/enable" 1 OK $ENABLE_BOUND
	is state "$(show "$M/state")" live
	# Who opens it does not wait for who looks for partitions.
	must timeout -s KILL $BOUND blockdev --getsz "/dev/$(show "$M/device")" >/run/size
	is size "$(</run/size)" 32768
	ends_so disable "$M/enable" 0 OK
	is_gone
}

# has_opened PID: it has a disk of farblk open. has_in_flight: the map has a request.
has_opened() { [[ $(readlink "/proc/$1/fd/"*) == */dev/farblk* ]]; }
has_in_flight() { [ "$(counter "$D/maps/m/stats" in_flight)" -gt 0 ]; }

# The same, and a reader that waits: only force ends that.
force_hanging() {
	local pid
	hanging_disk
	hang
	must map_make m e
	ends_so enable "$M/enable" 1 OK $ENABLE_BOUND
	dd if="/dev/$(show "$M/device")" of=/dev/null bs=4k count=1 status=none 2>/dev/null &
	pid=$!
	wait_for $BOUND has_opened $pid || bad "the reader does not come"
	ends_so disable "$M/enable" 0 EBUSY
	ends_so force "$M/enable" force OK
	wait_for $BOUND ended $pid || bad "the reader hangs"
	is_gone
}

# force while enable has not returned.
force_enable() {
	hanging_disk
	hang
	must map_make m e
	order enable "$M/enable" 1
	wait_for $BOUND state_is connecting
	ends_so force "$M/enable" force OK
	outcome_is enable "OK|ECANCELED"
	is_gone
}

# The path is lost while enable waits for the first read, and I/O waits for it for ever.
enable_loses_path() {
	hanging_disk
	hang
	must map_make m e no_path_timeout_ms=-1
	order enable "$M/enable" 1
	wait_for $BOUND has_device && wait_for $BOUND is_at_disk || bad "the disk is not read"
	# The port ends the session, and then waits for the disk.
	must remote "store $C/ports/p/enable 0 >/dev/null 2>&1 3>&- 4>&- &"
	outcome_is enable OK $ENABLE_BOUND
	wait_for $BOUND state_is reconnecting || bad "state is '$(show "$M/state")'"
	ends_so disable "$M/enable" 0 OK
	resume
	must remote "wait_for 30 grep -q disabled $C/ports/p/state && store $C/ports/p/enable 1"
	is_gone
}
has_device() { [ -n "$(show "$M/device")" ]; }

# The disk appears, partitions and all, once the server's disk answers.
late_partitions() {
	local d
	hanging_disk
	must remote "printf '\\0\\0\\0\\0\\203\\0\\0\\0\\0\\10\\0\\0\\0\\10\\0\\0' | dd of=$BACK bs=1 seek=446 conv=notrunc status=none && printf '\\125\\252' | dd of=$BACK bs=1 seek=510 conv=notrunc,fsync status=none"
	must map m e
	[ -b "${DEV}p1" ] || bad "there is no partition when enable returns"
	must direct_read "${DEV}p1" /dev/null
	ends_so disable "$M/enable" 0 OK
	hang
	ends_so enable "$M/enable" 1 OK $ENABLE_BOUND
	d=/sys/class/block/$(show "$M/device")
	[ ! -d "$d"/*p1 ] || bad "there is a partition before the disk was read"
	must resume
	wait_for $BOUND [ -d "$d/${d##*/}p1" ] || bad "there is no partition after the disk was read"
	must unmap m
}

# A scan for partitions that somebody asked for holds the lock that opening and closing takes, while
# I/O waits for a path.
scan_waits() {
	local pid
	hanging_disk
	must map m e no_path_timeout_ms=-1
	must remote "store $C/ports/p/enable 0"
	wait_for $BOUND state_is reconnecting || bad "state is '$(show "$M/state")'"
	blockdev --rereadpt "$DEV" 2>/dev/null &
	pid=$!
	wait_for $BOUND has_opened $pid || bad "who scans does not come"
	sleep 1
	ends_so disable "$M/enable" 0 EBUSY
	ends_so force "$M/enable" force OK
	wait_for $BOUND ended $pid || bad "who scans hangs"
	must remote "store $C/ports/p/enable 1"
	is_gone
}

# A reader that was killed sits in the kernel and closes the disk.
killed_reader() {
	local pid
	hanging_disk
	must map m e
	hang
	dd if="$DEV" of=/dev/null bs=4k count=1 skip=100 status=none 2>/dev/null &
	pid=$!
	wait_for $BOUND has_opened $pid && wait_for $BOUND has_in_flight || bad "the reader does not come"
	kill -KILL $pid
	sleep 1
	ends_so disable "$M/enable" 0 EBUSY
	ends_so force "$M/enable" force OK
	wait_for $BOUND ended $pid || bad "the killed reader stays"
	is_gone
}

# Two commands at a time: the second is refused and says why; force is not.
concurrent() {
	must map_make m e
	# Nobody answers there.
	must path m "addr=${FARBLK_SERVER%.*}.213"
	order enable "$M/enable" 1
	wait_for $BOUND state_is connecting
	refused EBUSY "$M/enable" 1 "another task"
	refused EBUSY "$M/enable" 0 "another task"
	ends_so force "$M/enable" force OK
	outcome_is enable "ECANCELED|EHOSTUNREACH|ETIMEDOUT"
	is state "$(show "$M/state")" disabled
	must map_rm m
}

# A map that goes while the server cannot hear of it says so.
untold() {
	must serve e 8M
	must map m e no_path_timeout_ms=-1
	must remote "store $C/ports/p/enable 0"
	wait_for $BOUND state_is reconnecting || bad "state is '$(show "$M/state")'"
	ends_so disable "$M/enable" 0 OK
	[[ $(show "$M/last_error") == "ENOTCONN "*"keeps"* ]] || bad "last_error is '$(show "$M/last_error")'"
	is clients_away "$(remote "show $C/exports/e/clients_away")" 1
	must remote "store $C/ports/p/enable 1"
	must map_on m
	ends_so disable "$M/enable" 0 OK
	no_error maps/m
	must map_rm m
}

# The server's own commands wait for its disk. A task that is killed meanwhile ends; nothing begins
# any more, and another command waits on.
killed_disable() {
	local pid
	hanging_disk
	must map m e
	read_hanging 100
	kill_disable exports/e
	is state "$(remote "show $C/exports/e/state")" closing
	is enable "$(remote "show $C/exports/e/enable")" 1
	[[ $(remote "show $C/exports/e/last_error") == "EINTR killed while"* ]] || bad "last_error is '$(remote "show $C/exports/e/last_error")'"
	remote "store $C/exports/e/enable 1" 2>/dev/null && bad "enable 1 succeeds while the export is being disabled"
	must resume
	must remote "store $C/exports/e/enable 0"
	is state "$(remote "show $C/exports/e/state")" disabled
	must remote "store $C/exports/e/enable 1"
	wait_for 30 ended "$pid" || bad "the reader hangs"
	read_hanging 200
	kill_disable ports/p
	is state "$(remote "show $C/ports/p/state")" closing
	[[ $(remote "show $C/ports/p/last_error") == "EINTR killed while"* ]] || bad "last_error is '$(remote "show $C/ports/p/last_error")'"
	remote "store $C/ports/p/enable 1" 2>/dev/null && bad "enable 1 succeeds while the port is being disabled"
	must resume
	must remote "store $C/ports/p/enable 0"
	is state "$(remote "show $C/ports/p/state")" disabled
	must remote "store $C/ports/p/enable 1"
	wait_for 30 ended "$pid" || bad "the reader hangs"
	must unmap m
}
# read_hanging BLOCK: pid is a reader whose command the server's disk does not answer.
read_hanging() {
	hang
	dd if="$DEV" of=/dev/null iflag=direct bs=4k count=1 skip="$1" status=none &
	pid=$!
	wait_for $BOUND is_at_disk || die "the read does not get to the disk"
}
is_at_disk() { [ "$(remote "counter $D/exports/e/stats in_flight")" -gt 0 ]; }
# A disk that hangs holds up its own export alone, however much it was asked for, and however little
# memory the server has.
hanging_neighbour() {
	local before fio pid
	reload_server "load_module pool_size=$((2 << 20))"
	hanging_disk
	must map m e
	# A client that was busy before may have that many commands in flight.
	deep || bad "fio: $(tail -n 3 /run/fio.out)"
	before=$(waits) || die "no waits in $(remote "cat $D/server/connections")"
	hang
	deep &
	fio=$!
	wait_for $BOUND commands_wait || die "no command waits for memory: $(remote "cat $D/server/connections")"
	must remote "null_disk fbf 16 >/dev/null"
	must serve_block f /dev/fbf
	must map n f
	random /run/data 4
	{ direct_write /run/data "$DEV" && direct_read "$DEV" /run/back count=4 && { cmp /run/data /run/back || wrong "the neighbour reads other data"; }; } &
	pid=$!
	wait_for $((BOUND * 2)) ended $pid || die "the neighbour stands still"
	wait $pid || bad "the neighbour's I/O failed"
	ends_on_server "store $C/exports/f/enable 0"
	is "state of the neighbour" "$(remote "show $C/exports/f/state")" disabled
	is "state of the export that hangs" "$(remote "show $C/exports/e/state")" online
	must unmap n force
	must resume
	wait_for 30 ended "$fio" || bad "fio hangs"
	wait "$fio" || bad "fio: $(tail -n 3 /run/fio.out)"
	must unmap m
}
deep() { fio --name=deep --filename="$DEV" --direct=1 --ioengine=libaio --rw=randread --bs=256k --iodepth=16 --size=16m --output=/run/fio.out >/dev/null 2>&1; }
waits() { remote "counter $D/server/connections waits"; }
commands_wait() { [ "$(waits)" -gt $((before + 4)) ]; }
# Slots keep small memory for their next commands: one that needs all that there is gets it, also if
# nothing but such slots is in its way.
kept_memory() {
	local n
	reload_server "load_module pool_size=$((1 << 20))"
	back "null_disk fbn 16"
	must serve_block e "$BACK"
	must map m e queues=1 depth=128
	random /run/data 4
	must direct_write /run/data "$DEV"
	for n in 1 2 3; do
		must fio --name=small --filename="$DEV" --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=64 --size=4m --io_size=2m --output=/run/fio.out
		# 1 MiB each, and several at once.
		must fio --name=large --filename="$DEV" --direct=1 --ioengine=libaio --rw=read --bs=1m --iodepth=4 --size=4m --output=/run/fio.out
		must direct_read "$DEV" /run/back bs=4k count=1
		must direct_read "$DEV" /run/back count=4
		cmp /run/data /run/back || wrong "other data are read"
	done
	is state "$(show "$C/maps/m/state")" live
	no_error maps/m
	must unmap m
}
# kill_disable DIR: a task of the server that writes 0 to enable there is killed after five seconds,
# and ends.
kill_disable() { kill_store "$1/enable" 0; }
# kill_store FILE VALUE: the same for a task that writes there. In the foreground, timeout does not
# kill itself but waits for it.
kill_store() { ends_on_server "timeout --foreground -s KILL 5 bash -c 'echo $2 >$C/$1'"; }
# ends_on_server COMMAND: what it says, it ends.
ends_on_server() { must remote "rm -f /run/ended; ($1; touch /run/ended) >/dev/null 2>&1 3>&- 4>&- & wait_for $((BOUND * 2)) [ -e /run/ended ]"; }

# What changes who may have an export waits for its disk. A task that is killed meanwhile ends, and
# the removal of a host does not keep others from configfs.
killed_access() {
	local host pid
	host=$(show "$C/host_name")
	hanging_disk
	must remote "store $C/exports/e/enable 0; mkdir $C/exports/e/hosts/$host; store $C/exports/e/hosts/$host/access rw; settings $C/exports/e allow_any_host=0 enable=1"
	must map m e
	read_hanging 100
	kill_store "exports/e/hosts/$host/access" ro
	is access "$(remote "show $C/exports/e/hosts/$host/access")" ro
	kill_store "exports/e/hosts/$host/host_id" "$(show "$C/host_id")"
	kill_store exports/e/evict "$host"
	[[ $(remote "show $C/exports/e/refusal") == "EINTR killed while"* ]] || bad "refusal is '$(remote "show $C/exports/e/refusal")'"
	ends_on_server "rmdir $C/exports/e/hosts/$host && mkdir $C/exports/g && rmdir $C/exports/g && touch /run/removed"
	must remote "[ -e /run/removed ] && rm /run/removed && [ ! -e $C/exports/e/hosts/$host ]"
	is clients "$(remote "show $C/exports/e/clients")" 1
	must resume
	# Either this waits, or there is nothing left to wait for.
	[[ $(remote "errno_of store $C/exports/e/evict $host") =~ ^(OK|ENOENT)$ ]] || bad "evict: $(remote "show $C/exports/e/refusal")"
	is clients "$(remote "show $C/exports/e/clients")" 0
	wait_for $BOUND state_is evicted || bad "state is '$(show "$M/state")'"
	wait_for 30 ended "$pid" || bad "the reader hangs"
	must unmap m force
}

# While a map is disabled it says so, and enable reads as 1 until nothing is left of it.
closing() {
	hanging_disk
	hang
	must map_make m e
	ends_so enable "$M/enable" 1 OK $ENABLE_BOUND
	# The server does not confirm the logout: it waits for the first read.
	order disable "$M/enable" 0
	wait_for $BOUND state_is closing || bad "state is '$(show "$M/state")'"
	is enable "$(show "$M/enable")" 1
	refused EBUSY "$M/enable" 1 "another task"
	wait_for $BOUND enable_is 0 || bad "it is not disabled"
	is_gone
	outcome_is disable OK
	must map_make m e
	must map_on m
	must unmap m
}
enable_is() { [ "$(show "$M/enable")" = "$1" ]; }

# force begins just after another command, or just before it: it wins.
orders() {
	local i first
	must serve e 8M
	must map_make m e
	for ((i = 0; i < 18; i++)); do
		first=$((i % 3))
		[ $first = 1 ] || must map_on m
		[ $first != 2 ] || first=force
		order first "$M/enable" $first
		sleep 0.0$((i / 3 % 10))
		order second "$M/enable" force
		outcome_is second OK
		case $first in
		0) outcome_is first "OK|EBUSY" ;;
		1) outcome_is first "OK|EBUSY|ECANCELED" ;;
		force) outcome_is first OK ;;
		esac
		# An enable that came late.
		ends_so third "$M/enable" force OK
		is state "$(show "$M/state")" disabled
	done
	must map_on m
	must unmap m
}

# A path that is enabled while its map is disabled is refused, or is part of what is enabled next.
path_meets() {
	local i got
	must serve e 8M
	must map m e
	must mkdir "$M/paths/b"
	must store "$M/paths/b/addr" "$FARBLK_SERVER"
	for ((i = 0; i < 10; i++)); do
		order disable "$M/enable" 0
		sleep 0.0$((i % 10))
		got=$(errno_of store "$M/paths/b/enable" 1)
		[[ $got =~ ^(OK|EBUSY)$ ]] || bad "a path that comes while its map is disabled: $got"
		outcome_is disable OK
		is "the path" "$(show "$M/paths/b/enable")" "$([ "$got" = OK ] && echo 1 || echo 0)"
		must map_on m
		[ "$got" != OK ] || wait_for $BOUND path_is b live || bad "path b is '$(show "$M/paths/b/state")'"
		must store "$M/paths/b/enable" 0
	done
	must unmap m
}
path_is() { [ "$(show "$M/paths/$1/state")" = "$2" ]; }

# When an export is disabled its device is free, also if a process has just looked at it.
free_at_once() {
	back "null_disk fbf 16"
	must serve_block e "$BACK"
	must map m e no_path_timeout_ms=-1
	must remote "while [ ! -e /run/looked ]; do cat $C/exports/e/{clients,instance,state}; done >/dev/null 2>&1 3>&- 4>&- &
		for i in {1..20}; do
			store $C/exports/e/enable 0 && store $C/exports/e/enable 1 || { touch /run/looked; exit 1; }
			sleep 0.0\$((i % 10))
		done
		touch /run/looked; wait"
	must remote "rm /run/looked"
	wait_for 30 state_is live || bad "state is '$(show "$M/state")'"
	must direct_read "$DEV" /dev/null count=1
	must unmap m
}

scenario enable_hanging "enable and disable while the server's disk hangs"
scenario force_hanging "force while the server's disk hangs, and a reader waits"
scenario force_enable "force while enable has not returned"
scenario enable_loses_path "enable while the server's disk hangs, and the path is lost"
scenario late_partitions "partitions are there when enable returns, or when the server's disk answers"
scenario scan_waits "disable and force while a partition scan waits for a path"
scenario killed_reader "disable and force while a killed reader closes the disk"
scenario concurrent "commands at the same time: EBUSY and why, and force wins"
scenario closing "a map says that it is being disabled, until nothing is left of it"
scenario orders "force meets each command in each order, and wins"
scenario path_meets "a path that is enabled while its map is disabled"
scenario free_at_once "the device of an export is free when that is disabled"
scenario untold "a map that goes while the server cannot hear of it says so"
scenario killed_disable "the server disables an export or a port while its disk hangs, and is killed"
scenario killed_access "the server takes an export away from a host while its disk hangs, and is killed"
scenario kept_memory "reads of 1 MiB after small ones, for which there is just enough memory"
scenario hanging_neighbour "an export goes on and is disabled while the disk of another one hangs"
run_scenarios
