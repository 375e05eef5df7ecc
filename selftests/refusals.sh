#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A map that cannot be had says why within 5 s, each cause with its own errno and words.
. "$(dirname "$0")/lib.sh"

# not_mapped NAME "ERRNO" REGEX: enabling map NAME ends so, in time, and leaves it usable.
not_mapped() {
	local m=$C/maps/$1 start=${EPOCHREALTIME/./} ms
	refused "$2" "$m/enable" 1 "$3"
	ms=$(((${EPOCHREALTIME/./} - start) / 1000))
	note "$ms ms: $(show "$m/last_error")"
	# The attempt has 4 s; the rest is for a machine that stands still.
	[ $ms -le 7500 ] || bad "it took $ms ms"
	is "enable of $1" "$(show "$m/enable")" 0
	is "device of $1" "$(show "$m/device")" ""
	[[ $(show "$m/state") =~ ^(disabled|failed|stale)$ ]] || bad "state of $1 is '$(show "$m/state")'"
}

# then_mapped NAME: the cause is gone: the same map comes up, and last_error is empty again.
then_mapped() {
	must map_on "$1"
	no_error "maps/$1"
	is "state of $1" "$(show "$C/maps/$1/state")" live
	must unmap "$1"
}

nobody_listens() {
	must map_make m e
	not_mapped m ECONNREFUSED "$FARBLK_SERVER:7420"
	must serve e 8M
	then_mapped m
}

no_such_host() {
	must map_make m e
	must path m addr=203.0.113.1
	not_mapped m "ENETUNREACH|EHOSTUNREACH" 203.0.113.1
	must path m "addr=${FARBLK_SERVER%.*}.77"
	not_mapped m "EHOSTUNREACH|ETIMEDOUT" "${FARBLK_SERVER%.*}.77"
	must serve e 8M
	must path m "addr=$FARBLK_SERVER" source=192.0.2.1
	not_mapped m EADDRNOTAVAIL "^EADDRNOTAVAIL 192.0.2.1 is not an address of this host$"
	must path m source=127.0.0.1
	not_mapped m "ENODEV|EINVAL" 127.0.0.1
	must path m source=
	then_mapped m
}

no_such_export() {
	must serve e 8M
	must map_make m wrong
	not_mapped m ENOENT wrong
	must store "$C/maps/m/export" e
	then_mapped m
	must map_make m e
	must remote "store $C/exports/e/enable 0"
	not_mapped m "ENXIO" e
	must remote "store $C/exports/e/ports elsewhere; store $C/exports/e/enable 1"
	not_mapped m "ENOENT|EACCES|ENXIO|EPROTO" e
}

# While it is enabled, the export or the port goes away: that is told as what it is, and the next
# attempt may succeed.
going_away() {
	local what n got="" tries=100
	! is_short || tries=25
	must serve e 8M
	must map_make m e queues=8
	for what in exports/e ports/p; do
		must remote "touch /run/flapping; (exec 9>&-; while [ -e /run/flapping ]; do store $C/$what/enable 0; store $C/$what/enable 1; sleep 0.0\$((RANDOM % 10)); done; touch /run/flapped) </dev/null >/dev/null 2>&1 &"
		for ((n = 0; n < ${FARBLK_TRIES:-$tries}; n++)); do
			outcome store "$C/maps/m/enable" 1
			got+="$GOT "
			[ "$GOT" != EPROTO ] || bad "last_error is '$(show "$C/maps/m/last_error")'"
			must store "$C/maps/m/enable" force
		done
		must remote "rm /run/flapping; wait_for 20 test -e /run/flapped && rm /run/flapped"
	done
	note "$(tr ' ' '\n' <<<"$got" | sort | uniq -c | xargs)"
	[[ $got =~ ENOTCONN ]] || skip "no attempt met a session that had ended"
	then_mapped m
}

not_admitted() {
	local host
	host=$(show "$C/host_name")
	must serve e 8M allow_any_host=0
	must map_make m e
	not_mapped m EACCES "$host"
	must remote "mkdir $C/exports/e/hosts/somebody-else && store $C/exports/e/hosts/somebody-else/access rw"
	not_mapped m EACCES "$host"
	must remote "mkdir $C/exports/e/hosts/$host"
	not_mapped m EACCES "$host"
	# Who is admitted to nothing learns nothing of what there is.
	must remote "export_ram off 8M allow_any_host=0 && store $C/exports/off/enable 0"
	for export in nothing off; do
		must store "$C/maps/m/export" $export
		not_mapped m EACCES "host $host is not admitted to $export$"
	done
	must store "$C/maps/m/export" e
	must remote "store $C/exports/e/hosts/$host/access rw"
	must map_on m
	is "connected of the host" "$(remote "show $C/exports/e/hosts/$host/connected")" 1
	must unmap m
	must map_make m e
	must remote "store $C/exports/e/hosts/$host/host_id 12345678-9abc-4def-8123-456789abcdef"
	not_mapped m EACCES "$host"
	must remote "store $C/exports/e/hosts/$host/host_id $(show "$C/host_id")"
	then_mapped m
}

read_only() {
	local host
	host=$(show "$C/host_name")
	must serve e 8M read_only=1
	must map_make m e
	not_mapped m EROFS "e"
	must store "$C/maps/m/access" ro
	then_mapped m
	must remote "store $C/exports/e/enable 0; settings $C/exports/e read_only=0 allow_any_host=0 enable=1"
	must remote "mkdir $C/exports/e/hosts/$host && store $C/exports/e/hosts/$host/access ro"
	must map_make m e
	not_mapped m EROFS "e"
	must store "$C/maps/m/access" ro
	then_mapped m
}

# demoted KIND: a host that is mapped may only read from now on, and then write again. One that does
# its I/O by commands goes on and is told that its disk is read-only; one that writes by itself is
# let in no more, and says why.
demoted() {
	local m=$C/maps/m h
	h=$C/exports/e/hosts/$(show "$C/host_name")
	case $1 in
	ram) must serve e 8M allow_any_host=0 ;;
	block) back "null_disk fb0 8"; must serve_block e "$BACK" allow_any_host=0 ;;
	esac
	must remote "mkdir $h && store $h/access rw"
	must map m e no_path_timeout_ms=-1
	must random /run/new 8
	must direct_write /run/new "$DEV"
	must remote "store $h/access ro"
	case $1 in
	ram)
		wait_for 30 says_why || bad "last_error of the path is '$(show "$m/paths/a/last_error")'"
		is "state of m" "$(show "$m/state")" reconnecting
		;;
	block)
		wait_for 30 disk_is ro || bad "the disk can be written: $(show "$m/state"), $(show "$m/paths/a/last_error")"
		wait_for 30 map_state live || bad "m is $(show "$m/state"): $(show "$m/paths/a/last_error")"
		must direct_read "$DEV" /run/back count=8
		must cmp /run/new /run/back
		! direct_write /run/new "$DEV" 2>/dev/null || bad "the disk is written"
		;;
	esac
	must remote "store $h/access rw"
	wait_for 30 map_state live || bad "m is $(show "$m/state"): $(show "$m/paths/a/last_error")"
	wait_for 30 disk_is rw || bad "the disk is read-only"
	must direct_write /run/new "$DEV"
	no_error maps/m/paths/a
	must unmap m
}
says_why() { [[ $(show "$C/maps/m/paths/a/last_error") == "EROFS "*"e is read-only for $(show "$C/host_name")"* ]]; }
disk_is() { [ "$(blockdev --getro "$DEV")" = "$([ "$1" = rw ] && echo 0 || echo 1)" ]; }
map_state() { [ "$(show "$C/maps/m/state")" = "$1" ]; }
demoted_ram() { demoted ram; }
demoted_block() { demoted block; }

max_clients() {
	must serve e 8M max_clients=1
	must map one e
	must map_make two e
	not_mapped two EBUSY "e"
	is clients "$(remote "show $C/exports/e/clients")" 1
	is "state of one" "$(show "$C/maps/one/state")" live
	must unmap one
	then_mapped two
}

no_path() {
	must serve e 8M
	must map_make m e
	must store "$C/maps/m/paths/a/enable" 0
	not_mapped m EINVAL path
	must store "$C/maps/m/paths/a/enable" 1
	then_mapped m
}

other_instance() {
	must serve e 8M
	must map_make m e no_path_timeout_ms=-1 expect_instance=12345678-9abc-4def-8123-456789abcdef
	not_mapped m ESTALE "12345678|instance"
	# The map had logged in. It leaves, so that another one gets its place at once.
	wait_for 30 none_away || bad "$(remote "show $C/exports/e/clients_away") are away"
	must store "$C/maps/m/expect_instance" "$(remote "show $C/exports/e/instance")"
	then_mapped m
}

none_away() { [ "$(remote "show $C/exports/e/clients_away")" = 0 ]; }

# The name of the exported device leads to another one by now: a map that used the first one does
# not go on with it. It says so, and what it finds when it is enabled anew is what there is.
other_device() {
	needs_module null_blk
	must remote "null_disk fbn 8; null_disk fbo 8; ln -sfn /dev/fbn /run/disk"
	must serve_block e /run/disk "$@"
	must map m e
	must direct_write /dev/zero "$DEV" count=1
	must remote "store $C/exports/e/enable 0 && ln -sfn /dev/fbo /run/disk && store $C/exports/e/enable 1"
	wait_for 30 state_is evicted || bad "the map is $(show "$C/maps/m/state") on another device"
	[[ $(show "$C/maps/m/last_error") =~ device ]] || bad "last_error is '$(show "$C/maps/m/last_error")'"
	! dd if="$DEV" of=/dev/null iflag=direct bs=4k count=1 status=none 2>/dev/null || bad "a read of another device succeeds"
	must store "$C/maps/m/enable" 0
	then_mapped m
}
other_device_shared() { other_device max_clients=2; }
# The same name, and the same size, after the device was taken away and made anew.
device_made_anew() {
	needs_module null_blk
	must remote "null_disk fbn 8"
	must serve_block e /dev/fbn
	must map m e
	must remote "store $C/exports/e/enable 0 && cd /sys/kernel/config/nullb/fbn && store power 0 && store power 1 && store $C/exports/e/enable 1"
	wait_for 30 state_is evicted || bad "the map is $(show "$C/maps/m/state") on a new device"
	must store "$C/maps/m/enable" 0
	then_mapped m
}
state_is() { [ "$(show "$C/maps/m/state")" = "$1" ]; }

# One device is the same by any of its names.
same_device() {
	needs_module null_blk
	must remote "null_disk fbn 8; ln -sfn /dev/fbn /run/disk"
	must serve_block e /dev/fbn
	must map m e
	must direct_write /dev/urandom "$DEV" count=1
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/device_path /run/disk && store $C/exports/e/enable 1"
	goes_on
}
# A device that tells who it is (NAA, EUI-64) is the same when it comes back, as another disk for
# the kernel.
same_identifier() {
	needs_module scsi_debug
	back "scsi_disk 8"
	must serve_block e "$BACK"
	must map m e
	must direct_write /dev/urandom "$DEV" count=1
	must remote "store $C/exports/e/enable 0 && $(declare -f scsi_again); scsi_again ${BACK##*/} && store $C/exports/e/device_path \$(scsi_name) && store $C/exports/e/enable 1"
	goes_on
}
# scsi_again DISK: takes a disk of scsi_debug away and finds it again.
scsi_again() {
	local host
	host=$(readlink -f "/sys/class/block/$1/device")
	host=${host%/target*} host=${host##*/}
	store "/sys/class/block/$1/device/delete" 1 && store "/sys/class/scsi_host/$host/scan" "- - -" && wait_for 30 scsi_name >/dev/null
}
# goes_on: map m is live, and a read works.
goes_on() {
	within 30 must dd if="$DEV" of=/dev/null iflag=direct bs=4k count=1 status=none
	is state "$(show "$C/maps/m/state")" live
	must unmap m
}

# The client offers a version that the server does not speak.
version() {
	must serve e 8M
	must rmmod farblk
	must load_module protocol_version=1
	must map_make m e
	not_mapped m EPROTONOSUPPORT "client 1 to 1"
	must map_rm m
	must rmmod farblk
	must load_module
	must map_make m e
	then_mapped m
}

# The export and the map do not say the same about the protection of the I/O. Only a host that is
# admitted hears what the export says.
protection() {
	local host e=$C/exports/e none="protection=none"
	host=$(show "$C/host_name")
	back "null_disk fb0 8"
	must serve_block e "$BACK" protection=crc32c
	must map_make m e
	not_mapped m EPROTOTYPE "^EPROTOTYPE the export has protection=crc32c, the map $none$"
	must store "$C/maps/m/protection" seal
	not_mapped m ENOKEY "^ENOKEY protection=seal needs a key, and the map has none$"
	must store "$C/maps/m/protection" crc32c
	then_mapped m
	must remote "store $e/enable 0; settings $e $none enable=1"
	must map_make m e protection=crc32c
	not_mapped m EPROTOTYPE "^EPROTOTYPE the export has $none, the map protection=crc32c$"
	must store "$C/maps/m/protection" none
	must remote "store $e/enable 0; settings $e protection=crc32c allow_any_host=0 enable=1"
	not_mapped m EACCES "host $host is not admitted to e$"
	must remote "mkdir $e/hosts/$host && store $e/hosts/$host/access rw"
	not_mapped m EPROTOTYPE "^EPROTOTYPE the export has protection=crc32c, the map $none$"
	# One that is sealed is for hosts that prove a key. This one has none there.
	must remote "store $e/enable 0; settings $e protection=seal enable=1"
	not_mapped m ENOKEY "the server wants a key$"
	must store "$C/maps/m/protection" crc32c
	not_mapped m ENOKEY "the server wants a key$"
	is clients "$(remote "show $e/clients")" 0
}
# The memory of a ram export is accessed without the server.
protected_ram() {
	must serve e 8M
	must map_make m e protection=crc32c
	not_mapped m EPROTOTYPE "^EPROTOTYPE the export has protection=none, the map protection=crc32c$"
	must store "$C/maps/m/protection" none
	then_mapped m
}

no_answer() {
	[ -n "${FARBLK_AGENT:-}" ] || skip "only in the guests: it freezes the server"
	must serve e 8M
	must map m e
	must unmap m
	must map_make m e
	must power server stop
	not_mapped m ETIMEDOUT "$FARBLK_SERVER"
	must power server cont
	wait_for 30 then_mapped_quietly || die "not mapped after the server went on: $(show "$C/maps/m/last_error")"
	must unmap m
}
then_mapped_quietly() { store "$C/maps/m/enable" 1; }

# discover meets the same refusals.
discover() {
	local d=$C/discover/d
	must mkdir "$d"
	refused EINVAL "$d/enable" 1 addr
	must store "$d/addr" "$FARBLK_SERVER"
	within 10 refused ECONNREFUSED "$d/enable" 1 "$FARBLK_SERVER"
	must store "$d/addr" 203.0.113.1
	within 10 refused "ENETUNREACH|EHOSTUNREACH" "$d/enable" 1 203.0.113.1
	must serve e 8M allow_any_host=0
	must store "$d/addr" "$FARBLK_SERVER"
	must store "$d/enable" 1
	is "what a stranger may use" "$(show "$d/exports" | head -n 1)" "total 0"
	no_error discover/d
}

scenario nobody_listens "nobody listens: ECONNREFUSED"
scenario no_such_host "no route, no such host, no such source: ENETUNREACH, EHOSTUNREACH or ETIMEDOUT"
scenario no_such_export "no such export: ENOENT; disabled: ENXIO; on another port"
scenario going_away "an export or port that goes away meanwhile: no broken protocol"
scenario not_admitted "a host that is not admitted: EACCES"
scenario read_only "read-only exports and hosts: EROFS"
scenario demoted_ram "a host that may only read while it is mapped: EROFS for memory"
scenario demoted_block "and a read-only disk for a block device"
scenario max_clients "no room for one more client: EBUSY"
scenario no_path "no enabled path: EINVAL"
scenario other_instance "another instance than expected: ESTALE"
scenario other_device "another device behind the same name: the map is evicted"
scenario other_device_shared "the same of an export that several may map"
scenario device_made_anew "a device that was made anew: the map is evicted"
scenario same_device "the same device by another name: the map goes on"
scenario same_identifier "the same device, which was away: the map goes on"
scenario version "no protocol version in common: EPROTONOSUPPORT"
scenario protection "another protection than that of the export: EPROTOTYPE; no key: ENOKEY"
scenario protected_ram "the same of an export of RAM, which has none"
scenario no_answer "a server that does not answer: ETIMEDOUT"
scenario discover "discover is refused in the same way, and shows a stranger nothing"
run_scenarios
