#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The configfs files: what they take, what they refuse, in which order. One host.
. "$(dirname "$0")/lib.sh"
unset FARBLK_AGENT FARBLK_REMOTE
UUID=12345678-9abc-4def-8123-456789abcdef

# defaults OBJECT ATTRIBUTE=VALUE...
defaults() {
	local o=$C/$1 item
	for item in "${@:2}"; do is "the default of $1/${item%%=*}" "$(<"$o/${item%%=*}")" "${item#*=}"; done
}

# takes FILE VALUE[=>SHOWN]...
takes() {
	local file=$C/$1 item
	for item in "${@:2}"; do
		ends "'${item%%=>*}' into $1" OK store "$file" "${item%%=>*}"
		is "$1 after '${item%%=>*}'" "$(<"$file")" "${item##*=>}"
		[ ! -e "${file%/*}/refusal" ] || is "refusal after '${item%%=>*}' into $1" "$(<"${file%/*}/refusal")" ""
	done
}

# leaves FILE ERRNO VALUE...: each is refused, the old value stays.
leaves() {
	local file=$C/$1 value old
	old=$(<"$file")
	for value in "${@:3}"; do refused "$2" "$file" "$value"; done
	is "$1 after refused values" "$(<"$file")" "$old"
}

# A short run gives all that is no value to one attribute of each kind: all attributes have the same
# parsers, and these have host tests.
ALL_FOR="host_name ports/p/addr exports/e/size exports/e/block_size exports/e/read_only maps/m/queues"
gets_all() { ! is_short || [[ " $ALL_FOR " == *" $1 "* ]]; }

# leaves_garbage FILE: nothing takes bytes that are not one line of text, or 4095 of them.
GARBAGE=('1\0' '\0' '\xff\xfe\n' 'a\xc3\n' '1\n1\n' '\x1b[m\n' "$(printf '%01000d' 7)x" "$(printf 'x%.0s' {1..4000})")
TOO_LONG=("$(printf '%04095d' 7)" "$(printf 'x%.0s' {1..4096})")
leaves_garbage() {
	local file=$C/$1 old bytes
	gets_all "$1" || return 0
	old=$(<"$file")
	for bytes in "${GARBAGE[@]}"; do
		ends "garbage '${bytes:0:12}' into $1" EINVAL store_bytes "$file" "$bytes"
	done
	for bytes in "${TOO_LONG[@]}"; do
		ends "${#bytes} bytes into $1" EINVAL store_bytes "$file" "$bytes"
	done
	is "$1 after garbage" "$(<"$file")" "$old"
}

NOT_NUMBERS=("" " " - -- x 1x 0x10 1.5 1e3 "1 2" +1 ٣ 99999999999999999999999)
leaves_numbers() {
	if gets_all "$1"; then leaves "$1" EINVAL "${NOT_NUMBERS[@]}" "${@:2}"; else leaves "$1" EINVAL 1x "${@:2}"; fi
	leaves_garbage "$1"
}
# leaves_words FILE VALUE...: none of these, and no garbage.
leaves_words() { leaves "$1" EINVAL "${@:2}"; leaves_garbage "$1"; }
leaves_switch() { if gets_all "$1"; then leaves_numbers "$1" 2 -1 on yes true; else leaves "$1" EINVAL 2; fi; }
NOT_ADDRESSES=("" 10.9.0 10.9.0.256 10.9.0.1: 10.9.0.1:0 10.9.0.1:65536 10.9.0.1:-1 "10.9.0.1 7420" "[::1" "::1]:7420"
	host.example "10.9.0.1/24" "*" :7420)
# Addresses that would need a zone, which no side takes.
ZONES=(fe80::1 "[fe80::1]:7420" "[fe80::1%eth0]:7420" fe80::1%2 "[fd00::1%2]:7420")
leaves_zones() { local a; for a in "${ZONES[@]}"; do refused EINVAL "$C/$1" "$a" "with a zone, cannot be used"; done; }
leaves_addresses() { leaves_zones "$1"; if gets_all "$1"; then leaves_words "$1" "${NOT_ADDRESSES[@]}"; else leaves "$1" EINVAL "" 10.9.0.1:0; fi; }

read_only() { local f; for f; do ends "writing $f" EACCES store "$C/$f" 1; done; }

root() {
	[ -n "$(<"$C/version")" ] && [ "$(<"$C/protocol")" -ge 1 ] && show "$C/features" >/dev/null || bad "version, protocol, features"
	read_only version protocol features
	[[ $(<"$C/host_id") =~ ^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$ ]] || bad "host_id is '$(<"$C/host_id")'"
	local id name
	id=$(<"$C/host_id") name=$(<"$C/host_name")
	[ -n "$name" ] || bad "there is no host_name"
	takes host_id $UUID
	leaves_words host_id "" x ${UUID}0 "${UUID%?}" 00000000-0000-0000-0000-000000000000 "${UUID//-/_}"
	takes host_name node-b a.b:c_D9 "$(printf 'n%.0s' {1..63})"
	leaves_words host_name "" .hidden "a b" a/b é "$(printf 'n%.0s' {1..64})"
	store "$C/host_id" "$id"
	store "$C/host_name" "$name"
}

names() {
	local kind name
	for kind in ports exports maps discover; do
		for name in .hidden "a b" "a,b" é "$(printf 'n%.0s' {1..64})" "$(printf 'n%.0s' {1..255})"; do
			outcome mkdir "$C/$kind/$name"
			[[ $GOT =~ ^(EINVAL|ENAMETOOLONG)$ ]] || bad "mkdir $kind/${name:0:20} was not refused"
			[ "$GOT" != OK ] || rmdir "$C/$kind/$name"
		done
		name=$(printf 'n%.0s' {1..63})
		must mkdir "$C/$kind/$name"
		ends "a second $kind/$name" EEXIST mkdir "$C/$kind/$name"
		must rmdir "$C/$kind/$name"
	done
	ends "mkdir beside the fixed folders" EPERM mkdir "$C/more"
	ends "rmdir of a fixed folder" EPERM rmdir "$C/maps"
}

port() {
	local a
	must mkdir "$C/ports/p"
	defaults ports/p addr= enable=0 state=disabled device= last_error= refusal=
	read_only ports/p/{state,device,last_error,refusal}
	refused EINVAL "$C/ports/p/enable" 1 addr
	takes ports/p/addr "10.9.0.1=>10.9.0.1:7420" 10.9.0.1:1 "::1=>[::1]:7420" "[2001:db8::1]=>[2001:db8::1]:7420" "[2001:DB8:0:0::1]:99=>[2001:db8::1]:99"
	leaves_addresses ports/p/addr
	leaves_switch ports/p/enable
	must store "$C/ports/p/addr" 192.0.2.1
	refused EADDRNOTAVAIL "$C/ports/p/enable" 1 "no interface of this host has the address 192.0.2.1"
	is "last_error" "$(<"$C/ports/p/last_error")" "$(<"$C/ports/p/refusal")"
	for a in 127.0.0.1 127.1.2.3:7421 ::1; do
		must store "$C/ports/p/addr" "$a"
		refused EINVAL "$C/ports/p/enable" 1 "${a%:7421} is a loopback address"
	done
	is enable "$(<"$C/ports/p/enable")" 0
	must store "$C/ports/p/addr" "$FARBLK_SERVER"
	takes ports/p/enable 1 1
	is state "$(<"$C/ports/p/state")" listening
	leaves ports/p/addr EBUSY 10.9.0.9 "$FARBLK_SERVER"
	ends "rmdir of an enabled port" EBUSY rmdir "$C/ports/p"
	must mkdir "$C/ports/q"
	must store "$C/ports/q/addr" "$FARBLK_SERVER"
	refused EADDRINUSE "$C/ports/q/enable" 1 "another RDMA listener has port 7420 at $FARBLK_SERVER, or"
	must store "$C/ports/q/addr" 0.0.0.0
	refused EADDRINUSE "$C/ports/q/enable" 1 "another RDMA listener has port 7420 at some address"
	must store "$C/ports/q/addr" "$FARBLK_SERVER:7421"
	takes ports/q/enable 1 0 0
	takes ports/p/enable 0 0
	must store "$C/ports/q/addr" 0.0.0.0
	takes ports/q/enable 1
	refused EADDRINUSE "$C/ports/p/enable" 1 "or at all addresses"
	takes ports/q/enable 0
	takes ports/p/enable 1 0
	no_error ports/p
	is state "$(<"$C/ports/p/state")" disabled
	must rmdir "$C/ports/p" "$C/ports/q"
}

exports() {
	local e=exports/e a
	must mkdir "$C/$e"
	defaults $e kind=ram device_path= size=0 read_only=0 block_size=4096 numa_node=-1 ports=all allow_any_host=0 scrub=1 max_clients=1 enable=0 \
		lease_max_ms=3600000 protection=none registration= state=disabled instance= clients=0 clients_away=0 pr_registrants= allocated=0 last_error= refusal=
	read_only $e/{state,instance,clients,clients_away,pr_registrants,allocated,last_error,refusal}
	[[ $(<"$C/$e/uuid") =~ ^[0-9a-f]{8}- ]] || bad "uuid is '$(<"$C/$e/uuid")'"
	refused EINVAL "$C/$e/enable" 1 size
	takes $e/kind block ram
	leaves_words $e/kind "" RAM rams disk
	takes $e/device_path /dev/null "/dev/disk/by-id/a b" "/$(printf 'n%.0s' {1..1000})" ""
	leaves_words $e/device_path dev/null . "null" " /dev/null"
	takes $e/size "8K=>8192" "1M=>1048576" "3G=>3221225472" "1T=>1099511627776" "8191P=>9222246136947933184" \
		"15E=>17293822569102704640" "1.5G=>1610612736" "0.25k=>256" "2.50MiB=>2621440" "8M=>8388608" 8388608
	leaves_numbers $e/size -1 M "8 M" 8X 1.5.5G .5G 5.G -1.5G 1,5G
	for a in 16E 18446744073709551616 16777216T 16384P 99999999999999999999K; do refused EINVAL "$C/$e/size" $a "larger than"; done
	for a in 0.3K 1.5 1.0000000000000000001E 0.0001K; do refused EINVAL "$C/$e/size" $a "whole number of bytes"; done
	for a in 8X 8.0X "8 M" 4GB; do refused EINVAL "$C/$e/size" "$a" "1.5G"; done
	is "size after refused values" "$(<"$C/$e/size")" 8388608
	[ "$(<"$C/$e/ram_reserve")" -gt 0 ] || bad "nothing is left to the host by default"
	takes $e/ram_reserve "1.5M=>1572864" 0
	leaves_numbers $e/ram_reserve -1
	takes $e/uuid $UUID "${UUID^^}=>$UUID"
	leaves_words $e/uuid "" x ${UUID}0 00000000-0000-0000-0000-000000000000
	takes $e/read_only 1 0
	leaves_switch $e/read_only
	takes $e/block_size 512 1024 2048 4096
	leaves_numbers $e/block_size 0 256 513 8192 65536 -512 4294967808
	takes $e/numa_node 0 -1
	leaves_numbers $e/numa_node -2 63 1024 4294967295 9999999999
	takes $e/ports p "p q.r" all
	leaves_words $e/ports "" "p,q" .p "p /"
	takes $e/allow_any_host 1 0
	leaves_switch $e/allow_any_host
	takes $e/scrub 0 1
	leaves_switch $e/scrub
	takes $e/max_clients 2 1000 1
	leaves_numbers $e/max_clients 0 -1 65536 4294967297
	takes $e/lease_max_ms 10000 4294967295 3600000
	leaves_numbers $e/lease_max_ms 0 -1 9999 4294967296
	takes $e/protection crc32c seal none
	leaves_words $e/protection "" None crc32 seals 0 "seal crc32c"
	takes $e/registration 1 18446744073709551615 ""
	leaves_words $e/registration 0 -1 x 1x 18446744073709551616
	is "the mode of host_id" "$(stat -c %a "$C/host_id")" 600
	is "the mode of registration" "$(stat -c %a "$C/$e/registration")" 600
	is "the mode of evict" "$(stat -c %a "$C/$e/evict")" 200
	refused EINVAL "$C/$e/evict" "no name" evict
	refused ENOENT "$C/$e/evict" node-b node-b
	is "the mode of pr_clear" "$(stat -c %a "$C/$e/pr_clear")" 200
	for a in 0 2 x "" Force forced "1 force"; do refused EINVAL "$C/$e/pr_clear" "$a" pr_clear; done
	for a in 1 force; do ends "$a into pr_clear" OK store "$C/$e/pr_clear" $a; done
	leaves_switch $e/enable
	is clients "$(<"$C/$e/clients")" 0

	must mkdir "$C/$e/hosts/node-b"
	defaults $e/hosts/node-b host_id= access=none connected=0
	takes $e/hosts/node-b/access rw ro none
	leaves_words $e/hosts/node-b/access "" r RO "ro rw" None
	takes $e/hosts/node-b/host_id $UUID ""
	leaves_words $e/hosts/node-b/host_id x ${UUID}0
	read_only $e/hosts/node-b/connected
	ends "rmdir of an export with hosts" ENOTEMPTY rmdir "$C/$e"

	for a in crc32c seal; do
		must store "$C/$e/protection" $a
		refused EINVAL "$C/$e/enable" 1 "protection: .* ram export .* none"
		is "enable with protection=$a" "$(<"$C/$e/enable")" 0
	done
	must store "$C/$e/protection" none
	takes $e/enable 1 1
	is state "$(<"$C/$e/state")" online
	[[ $(<"$C/$e/instance") =~ ^[0-9a-f]{8}- ]] || bad "instance is '$(<"$C/$e/instance")'"
	for a in kind=ram device_path=/dev/null size=16M uuid=$UUID read_only=1 block_size=512 numa_node=0 ram_reserve=0 ports=p allow_any_host=1 scrub=0 max_clients=2 lease_max_ms=10000 \
		protection=crc32c registration=1; do
		leaves $e/${a%%=*} EBUSY "${a#*=}"
	done
	must mkdir "$C/$e/hosts/node-c"
	must rmdir "$C/$e/hosts/node-b" "$C/$e/hosts/node-c"
	ends "rmdir of an enabled export" EBUSY rmdir "$C/$e"
	a=$(<"$C/$e/instance")
	takes $e/enable 0 0 1
	[ "$(<"$C/$e/instance")" != "$a" ] || bad "new memory has the old instance $a"
	takes $e/enable 0
	is instance "$(<"$C/$e/instance")" ""
	must rmdir "$C/$e"
}

# A block export has what its device has, and says why it cannot have it.
block() {
	local e=exports/e a
	must mkdir "$C/$e"
	must store "$C/$e/kind" block
	refused EINVAL "$C/$e/enable" 1 device_path
	must store "$C/$e/device_path" /dev/nothing
	refused ENOENT "$C/$e/enable" 1 /dev/nothing
	for a in /dev/null "$HERE/lib.sh" /; do
		must store "$C/$e/device_path" "$a"
		refused ENOTBLK "$C/$e/enable" 1 "$a"
	done
	has_module null_blk || skip "the kernel has no null_blk"
	a=$(null_disk fbn 8 blocksize=512)
	must store "$C/$e/device_path" "$a"
	for a in size=8M block_size=512 numa_node=0; do
		must store "$C/$e/${a%%=*}" "${a#*=}"
		refused EINVAL "$C/$e/enable" 1 "${a%%=*}"
		must rmdir "$C/$e"
		must mkdir "$C/$e"
		must settings "$C/$e" kind=block device_path=/dev/fbn
	done
	takes $e/enable 1
	is state "$(<"$C/$e/state")" online
	is size "$(<"$C/$e/size")" 8388608
	is block_size "$(<"$C/$e/block_size")" 512
	for a in kind=ram device_path=/dev/null read_only=1; do leaves $e/${a%%=*} EBUSY "${a#*=}"; done
	takes $e/enable 0
	must settings "$C/$e" kind=ram size=8M
	refused EINVAL "$C/$e/enable" 1 device_path
	must rmdir "$C/$e"
}

# More memory than there is: refused in words, and nothing of it stays taken.
too_large() {
	local free
	must mkdir "$C/exports/e"
	free=$(memory)
	for size in 64G 512T 16383T; do
		must store "$C/exports/e/size" $size
		refused "ENOMEM|EINVAL|EFBIG" "$C/exports/e/enable" 1 "available"
		[[ $(<"$C/exports/e/last_error") != *NUMA* ]] || bad "last_error is '$(<"$C/exports/e/last_error")'"
		is enable "$(<"$C/exports/e/enable")" 0
	done
	[ $((free - $(memory))) -lt 2048 ] || wrong "memory fell from $free to $(memory) KiB"
}

# available: bytes of MemAvailable. most PERCENT: so much of them, in whole MiB.
available() { awk '/^MemAvailable:/ {printf "%d\n", $2 * 1024}' /proc/meminfo; }
most() { echo $(($(available) * $1 / 100 >> 20 << 20)); }

# ram_reserve stays available: an export that would take of it is refused, at once, and says what
# there is.
reserve() {
	local e=$C/exports/e
	must mkdir "$e"
	must store "$e/size" "$(most 98)"
	refused ENOMEM "$e/enable" 1 "ram_reserve.*available"
	is allocated "$(<"$e/allocated")" 0
	must settings "$e" size=8M ram_reserve=1T
	refused ENOMEM "$e/enable" 1 "ram_reserve.*available"
	must settings "$e" ram_reserve="$(most 50)" enable=1
	is allocated "$(<"$e/allocated")" 8388608
	must store "$e/enable" 0
	is allocated "$(<"$e/allocated")" 0
}

# enabling: enables an export in the background, as task PID; returns once it allocates, or is done.
enabling() {
	bash -c "echo 1 >$1/enable" &
	PID=$!
	until [ "$(<"$1/state")" != disabled ] || ended $PID; do :; done
}

# A large allocation tells how far it is.
progress() {
	local e=$C/exports/e size now last=0 seen=0 PID
	must mkdir "$e"
	[ -e "$e/allocated" ] || die "there is no allocated"
	size=$(most 60)
	must store "$e/size" "$size"
	enabling "$e"
	while [ "$(<"$e/state")" = allocating ]; do
		now=$(<"$e/allocated")
		[ "$now" -ge "$last" ] && [ "$now" -le "$size" ] || bad "allocated is $now after $last, of $size"
		[ "$now" = "$last" ] || [ "$now" = "$size" ] || seen=$((seen + 1))
		last=$now
	done
	wait $PID || bad "enable: $(<"$e/last_error")"
	[ $seen -gt 1 ] || bad "allocated was seen to grow $seen times"
	is allocated "$(<"$e/allocated")" "$size"
	must store "$e/enable" 0
	is allocated "$(<"$e/allocated")" 0
}

# It ends when the task that waits for it is killed, and leaves nothing.
killed() {
	local e=$C/exports/e PID tries=5 free
	must mkdir "$e"
	must store "$e/size" "$(most 60)"
	free=$(memory)
	while ((tries--)); do
		enabling "$e"
		[ "$(<"$e/state")" != allocating ] || break
		# It was done before it was looked at.
		wait $PID
		must store "$e/enable" 0
	done
	must kill -KILL $PID
	wait $PID 2>/dev/null
	is "enable after a kill" "$(<"$e/enable")" 0
	is "state after a kill" "$(<"$e/state")" disabled
	[[ $(<"$e/last_error") == "EINTR killed"* ]] || bad "last_error is '$(<"$e/last_error")'"
	[ $((free - $(memory))) -lt 8192 ] || wrong "memory fell from $free to $(memory) KiB"
	takes exports/e/enable 1
}

maps() {
	local m=maps/m p=maps/m/paths/a a
	must mkdir "$C/$m"
	defaults $m export=m access=rw queues=0 poll_queues=0 depth=128 inline_size=4096 protection=none tos=0 io_timeout_ms=30000 no_path_timeout_ms=60000 \
		heartbeat_ms=1000 reconnect_max_ms=10000 policy=min-inflight expect_instance= enable=0 state=disabled device= uuid= instance= mode= size=0 gives_up_ms= last_error= refusal=
	read_only $m/{state,device,uuid,instance,mode,size,gives_up_ms,last_error,refusal}
	refused EINVAL "$C/$m/enable" 1 path
	takes $m/export e "$(printf 'n%.0s' {1..63})" e
	leaves_words $m/export "" .e "a b" a/b é "$(printf 'n%.0s' {1..64})"
	takes $m/access ro rw
	leaves_words $m/access "" rwx 1 RW
	takes $m/queues 1 2 0
	leaves_numbers $m/queues -1 65536 4294967296
	takes $m/depth 1 1024 128
	leaves_numbers $m/depth 0 -1 1025 4294967424
	takes $m/poll_queues 1 2 0
	leaves_numbers $m/poll_queues -1 65536 4294967296
	takes $m/inline_size 0 "8K=>8192" 16384 4096
	leaves_numbers $m/inline_size -1 16385 4294971392
	takes $m/protection crc32c seal none
	leaves_words $m/protection "" None crc32 seals 0 "seal crc32c"
	takes $m/tos 255 0
	leaves_numbers $m/tos -1 256
	takes $m/io_timeout_ms 100 3600000 30000
	leaves_numbers $m/io_timeout_ms -1 0 99 3600001 4294997296 18446744073709551615
	takes $m/no_path_timeout_ms 0 86400000 -1 60000
	leaves_numbers $m/no_path_timeout_ms -2 -01 86400001 4294967295 4295027296 18446744073709551615
	takes $m/heartbeat_ms 0 1 60000 1000
	leaves_numbers $m/heartbeat_ms -1 60001 4294968296
	takes $m/reconnect_max_ms 100 3600000 10000
	leaves_numbers $m/reconnect_max_ms -1 0 99 3600001 4294977296
	takes $m/policy round-robin min-inflight
	leaves_words $m/policy "" 0 min MIN-INFLIGHT min_inflight round-robins
	takes $m/expect_instance $UUID ""
	leaves_words $m/expect_instance x ${UUID}0
	leaves_numbers $m/enable 2 -1 on FORCE
	takes $m/enable "force=>0" 0

	must mkdir "$C/$p"
	defaults $p addr= source= enable=0 state=disabled device= rtt_ns=0 reconnects=0 next_try_ms= last_error= refusal=
	read_only $p/{state,device,rtt_ns,reconnects,next_try_ms,last_error,refusal}
	refused EINVAL "$C/$p/enable" 1 addr
	takes $p/addr "10.9.0.1=>10.9.0.1:7420" "[::1]:5=>[::1]:5"
	leaves_addresses $p/addr
	for a in fe80::1 fe80::1%eth0; do refused EINVAL "$C/$p/source" $a "with a zone, cannot be used"; done
	takes $p/source 10.9.0.1 ::1 ""
	leaves_words $p/source x 10.9.0.1:7420 10.9.0
	takes $p/enable 0 1 1
	leaves_switch $p/enable
	ends "rmdir of an enabled path" EBUSY rmdir "$C/$p"
	for a in addr=10.9.0.9 source=; do leaves $p/${a%%=*} EBUSY "${a#*=}"; done
	ends "rmdir of a map with a path" ENOTEMPTY rmdir "$C/$m"

	must port_add p "$FARBLK_SERVER"
	must export_ram e 8M
	must path m "addr=$FARBLK_SERVER"
	must store "$C/$m/export" e
	must store "$C/$m/protection" seal
	refused ENOKEY "$C/$m/enable" 1 "protection=seal needs a key, and the map has none"
	must store "$C/$m/protection" none
	takes $m/enable 1 1
	is state "$(<"$C/$m/state")" live
	is "path state" "$(<"$C/$p/state")" live
	is mode "$(<"$C/$m/mode")" one_sided
	is size "$(<"$C/$m/size")" 8388608
	is uuid "$(<"$C/$m/uuid")" "$(<"$C/exports/e/uuid")"
	is instance "$(<"$C/$m/instance")" "$(<"$C/exports/e/instance")"
	is clients "$(<"$C/exports/e/clients")" 1
	for a in export=e access=ro queues=1 poll_queues=1 depth=64 inline_size=512 protection=seal tos=1 io_timeout_ms=5000 no_path_timeout_ms=0 heartbeat_ms=0 \
		reconnect_max_ms=100 policy=round-robin expect_instance=; do
		leaves $m/${a%%=*} EBUSY "${a#*=}"
	done
	for a in addr=10.9.0.9 source=; do leaves $p/${a%%=*} EBUSY "${a#*=}"; done
	leaves $p/enable EBUSY 0
	ends "rmdir of an enabled map" EBUSY rmdir "$C/$m"
	ends "rmdir of a used path" EBUSY rmdir "$C/$p"
	exec 5<"/dev/$(<"$C/$m/device")"
	refused EBUSY "$C/$m/enable" 0 "the device is open"
	is "state while open" "$(<"$C/$m/state")" live
	# What a command was refused is not what the map suffers, before and after that begins.
	no_error $m
	must store "$C/ports/p/enable" 0
	wait_for 30 map_suffers m || bad "the map without a server suffers nothing"
	a=$(<"$C/$m/last_error")
	[[ $a == E*" "* && $a != *"is open"* ]] || bad "last_error is '$a'"
	refused EBUSY "$C/$m/enable" 0 "the device is open"
	refused EBUSY "$C/$p/enable" 0
	refused EINVAL "$C/$m/enable" x
	for a in $m $p; do [[ $(<"$C/$a/last_error") =~ ^(ECONN|ENOTCONN|EHOST|ETIME) ]] || bad "last_error of $a is '$(<"$C/$a/last_error")'"; done
	must store "$C/ports/p/enable" 1
	wait_for 30 map_is m live || bad "the map is $(<"$C/$m/state")"
	no_error $m
	no_error $p
	exec 5<&-
	takes $m/enable 0 0
	is device "$(<"$C/$m/device")" ""
	is clients "$(<"$C/exports/e/clients")" 0
	must map_rm m
}

map_suffers() { [ -n "$(<"$C/maps/$1/last_error")" ]; }
map_is() { [ "$(<"$C/maps/$1/state")" = "$2" ]; }

# Up to eight paths, which come and go whether the map is enabled or not; only the last one of a map
# that is enabled stays.
paths() {
	local m=maps/m n
	must port_add p "$FARBLK_SERVER"
	must port_add q "$FARBLK_SERVER:7421"
	must export_ram e 8M
	must map_make m e
	for n in {1..8}; do
		must mkdir "$C/$m/paths/p$n"
		must store "$C/$m/paths/p$n/addr" "$FARBLK_SERVER:7421"
	done
	for n in {1..7}; do takes $m/paths/p$n/enable 1; done
	refused ENOSPC "$C/$m/paths/p8/enable" 1 "8 paths"
	is enable "$(<"$C/$m/paths/p8/enable")" 0
	takes $m/paths/p1/enable 0
	takes $m/paths/p8/enable 1
	for n in {2..8}; do takes $m/paths/p$n/enable 0; done
	takes $m/paths/a/enable 0
	refused EINVAL "$C/$m/enable" 1 path
	takes $m/paths/a/enable 1

	must map_on m
	takes $m/paths/p1/enable 1 1
	wait_for 30 path_is p1 live || bad "the second path is $(<"$C/$m/paths/p1/state")"
	is clients "$(<"$C/exports/e/clients")" 1
	is reconnects "$(<"$C/$m/paths/p1/reconnects")" 0
	no_error $m/paths/p1
	ends "rmdir of an enabled path" EBUSY rmdir "$C/$m/paths/p1"
	# Of the last one that is up it is no question, if there is another.
	takes $m/paths/a/enable 0 0
	is "path state" "$(<"$C/$m/paths/a/state")" disabled
	# I/O waits until the server says that it let go of the path.
	must direct_read "$DEV" /dev/null
	is state "$(<"$C/$m/state")" live
	leaves $m/paths/p1/enable EBUSY 0
	is "path state" "$(<"$C/$m/paths/p1/state")" live
	# It may have another address meanwhile. Where nobody listens it does not come up, and says
	# why.
	must settings "$C/$m/paths/a" "addr=$FARBLK_SERVER:9" enable=1
	wait_for 30 path_is a waiting || bad "the path to nobody is $(<"$C/$m/paths/a/state")"
	[[ $(<"$C/$m/paths/a/last_error") == "ECONNREFUSED "?* ]] || bad "last_error is '$(<"$C/$m/paths/a/last_error")'"
	is state "$(<"$C/$m/state")" live
	no_error $m
	takes $m/paths/a/enable 0
	takes $m/enable 0
	is "path state" "$(<"$C/$m/paths/p1/state")" disabled
	is clients "$(<"$C/exports/e/clients")" 0
	takes $m/paths/p1/enable 0
	must rmdir "$C/$m/paths/"p{1..8}
	must map_rm m
}
path_is() { [ "$(<"$C/maps/m/paths/$1/state")" = "$2" ]; }

discover() {
	local d=$C/discover/d
	must port_add p "$FARBLK_SERVER"
	must export_ram shown 8M max_clients=3
	must export_ram hidden 8M allow_any_host=0
	must mkdir "$d"
	takes discover/d/addr "10.9.0.1=>10.9.0.1:7420"
	leaves_addresses discover/d/addr
	takes discover/d/first 5 0
	leaves_numbers discover/d/first -1
	takes discover/d/pings 0 256 11
	leaves_numbers discover/d/pings 257 -1 65547
	takes discover/d/interval_us 0 1000000 1000
	leaves_numbers discover/d/interval_us 1000001 -1 4294968296
	read_only discover/d/{exports,rtt_ns,state,last_error,refusal}
	must store "$d/addr" "$FARBLK_SERVER"
	must store "$d/enable" 1
	is "what this host may use" "$(<"$d/exports")" "$(printf 'total 1\nshown ram 8388608 rw 0 3 %s' "$(<"$C/exports/shown/uuid")")"
	is "round trips" "$(grep -c '^[1-9][0-9]*$' "$d/rtt_ns")" 11
	must settings "$d" pings=0 enable=1
	is "round trips" "$(<"$d/rtt_ns")" ""
	no_error discover/d
	must rmdir "$d"
}

# A port at an address that only siw has.
siw() {
	[ "$PROVIDER" != siw ] || skip "it is used for tests"
	modprobe -q siw || :
	must ip link add farblk-siw type dummy
	at_exit "ip link del farblk-siw"
	must ip addr add 10.99.0.1/24 dev farblk-siw
	must ip link set farblk-siw up
	rdma link add siw9 type siw netdev farblk-siw || skip "the kernel has no siw"
	must mkdir "$C/ports/siw"
	must store "$C/ports/siw/addr" 10.99.0.1
	refused ENODEV "$C/ports/siw/enable" 1
	must rmdir "$C/ports/siw"
}

scenario root "the host's id and name; version, protocol and features cannot be written"
scenario names "names that no object may have"
scenario port "a port's attributes and life"
scenario exports "an export's attributes and life, and its hosts'"
scenario block "an export of a block device takes what its device has"
scenario too_large "an export larger than the memory is refused and leaves none of it taken"
scenario reserve "an export of RAM leaves the host its reserve"
scenario progress "a large allocation tells how far it is"
scenario killed "and ends when its task is killed"
scenario maps "a map's and a path's attributes and life"
scenario paths "paths come and go while their map is enabled, up to eight"
scenario siw "a device by which peers can read all memory is not used"
scenario discover "discover shows what this host may use, and round trips"
run_scenarios
