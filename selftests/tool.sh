#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The farblk tool, from the first port to the last unmap.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cli.sh"

whole_way() {
	local dev host
	host=$(show "$C/host_name")
	there port add --addr "$FARBLK_SERVER"
	there export create scratch --ram 16M --allow "$host"
	here discover "$FARBLK_SERVER"
	grep -q '^scratch .*16.0 MiB' /run/stdout || bad "discover: $(cat /run/stdout)"
	here map "$FARBLK_SERVER/scratch"
	dev=$(cat /run/stdout)
	[ -b "$dev" ] || die "map printed '$dev', which is no disk"
	is "the disk's size" "$(blockdev --getsize64 "$dev")" $((16 << 20))
	here map "$FARBLK_SERVER/scratch"
	is "the device of a second map" "$(cat /run/stdout)" "$dev"
	here list
	grep -q "^scratch .*${dev#/dev/} .* live " /run/stdout || bad "list: $(cat /run/stdout)"
	exec 5<"$dev"
	exits 4 "$FARBLK" unmap scratch
	exec 5<&-
	# That was refused, and hurts the map no more.
	here list
	! grep -q "last error" /run/stdout || bad "list after a refused unmap: $(cat /run/stdout)"
	here unmap "$dev"
	[ ! -e "$dev" ] || bad "$dev is still there"
	exits 3 "$FARBLK" unmap scratch
	here unmap --if-mapped scratch
	there export rm scratch
	there port rm 1
	is "what the server has left" "$(remote "ls $C/ports $C/exports" | grep -v : | tr -d '\n')" ""
}

valid_json() {
	there -j port add --addr "$FARBLK_SERVER" main
	there export create scratch --ram 16M --allow-any-host --max-clients 3
	here -j discover "$FARBLK_SERVER"
	is "discover -j" "$(json '.schema, .exports[0].name, .exports[0].size_bytes, .exports[0].max_clients' | tr '\n' ' ')" "farblk.discover/1 scratch 16777216 3 "
	here -j map "$FARBLK_SERVER/scratch" --name m
	is "map -j" "$(json '.schema, .map.name, .map.state' | tr '\n' ' ')" "farblk.map/1 m live "
	[ -b "$(json .map.device)" ] || bad "map -j gave no disk"
	here -j list
	is "list -j" "$(json '.maps[0].mode, .maps[0].size_bytes, .maps[0].last_error, .maps[0].paths[0].state' | tr '\n' ' ')" "one_sided 16777216 null live "
	is "lines of list -j" "$(wc -l </run/stdout)" 1
	remote "$FARBLK -j export list" >/run/stdout
	is "export list -j" "$(json '.exports[0].name, .exports[0].clients, .exports[0].state' | tr '\n' ' ')" "scratch 1 online "
	remote "$FARBLK -j port list" >/run/stdout
	is "port list -j" "$(json '.ports[0].name, .ports[0].state' | tr '\n' ' ')" "main listening "
	here -j version
	is "version -j" "$(json '.schema, .module.version' | tr '\n' ' ')" "farblk.version/1 $(show "$C/version") "
	here -j unmap m
	is "unmap -j" "$(json '.schema, .kind, .name' | tr '\n' ' ')" "farblk.removed/1 map m "
	exits 3 "$FARBLK" -j unmap m
	mv /run/stderr /run/stdout
	is "the error as JSON" "$(json '.schema, .code, .exit' | tr '\n' ' ')" "farblk.error/1 F0102 3 "
}

exit_codes() {
	exits 2 "$FARBLK" map
	exits 2 "$FARBLK" map "$FARBLK_SERVER"
	exits 5 "$FARBLK" map "$FARBLK_SERVER/e"
	grep -q F0203 /run/stderr || bad "nobody listens: $(cat /run/stderr)"
	exits 5 "$FARBLK" discover 203.0.113.1
	exits 1 "$FARBLK" map "$FARBLK_SERVER/e" --source 192.0.2.1
	grep -q "F0214.*192.0.2.1 is not an address of this host" <(tr -d '\n' </run/stderr) || bad "a wrong source: $(cat /run/stderr)"
	must serve e 8M allow_any_host=0
	# Who is admitted to nothing does not learn what there is.
	exits 6 "$FARBLK" map "$FARBLK_SERVER/wrong"
	grep -q F0204 /run/stderr || bad "wrong export of a stranger: $(cat /run/stderr)"
	must remote "export_ram open 8M"
	exits 3 "$FARBLK" map "$FARBLK_SERVER/wrong"
	grep -q F0206 /run/stderr || bad "wrong export: $(cat /run/stderr)"
	exits 6 "$FARBLK" map "$FARBLK_SERVER/e"
	grep -q F0204 /run/stderr || bad "not admitted: $(cat /run/stderr)"
	must remote "$FARBLK export allow e $(show "$C/host_name") --ro >/dev/null"
	exits 6 "$FARBLK" map "$FARBLK_SERVER/e"
	grep -q F0207 /run/stderr || bad "read only: $(cat /run/stderr)"
	is "maps that a failed map left" "$(ls "$C/maps")" ""
	here map --ro "$FARBLK_SERVER/e"
	is "rm of an export in use" "$(remote "$FARBLK export rm e 2>/dev/null; echo \$?")" 4
	here unmap e
	there export rm e
	is "rm of no export" "$(remote "$FARBLK export rm e 2>/dev/null; echo \$?")" 3
}

# host_ids: the source and the id of this host, and of the server.
host_ids() { cat "$C"/host_id_source "$C"/host_id; remote "cat $C/host_id_source $C/host_id"; }
# The first object gives each host an identity that is the same after the module was loaded again.
lasting_identity() {
	local ids before
	two_hosts || skip "one host is both"
	[ -s /etc/machine-id ] && remote "[ -s /etc/machine-id ]" || skip "a host has no machine ID"
	must remove_module
	must remote remove_module
	NO_HOST_ID=1 must load_module
	must remote "NO_HOST_ID=1 load_module"
	is "sources of the ids" "$(host_ids | sed -n '1p;3p' | xargs)" "random random"
	before=$(show "$C/host_id")
	here --dry-run map "$FARBLK_SERVER/e"
	grep -q "^echo .*/host_id$" /run/stdout || bad "dry run: $(cat /run/stdout)"
	is "the id after a dry run" "$(show "$C/host_id")" "$before"
	there port add --addr "$FARBLK_SERVER"
	exits 3 "$FARBLK" map "$FARBLK_SERVER/none"
	ids=$(host_ids | xargs)
	is "sources of the ids" "$(host_ids | sed -n '1p;3p' | xargs)" "written written"
	[ "$(show "$C/host_id")" != "$(remote "show $C/host_id")" ] || bad "both hosts have one id"
	there port rm 1
	must remove_module
	must remote remove_module
	NO_HOST_ID=1 must load_module
	must remote "NO_HOST_ID=1 load_module"
	there port add --addr "$FARBLK_SERVER"
	exits 3 "$FARBLK" map "$FARBLK_SERVER/none"
	is "ids after another load" "$(host_ids | xargs)" "$ids"
	# What somebody wrote stays.
	there port rm 1
	must store "$C/host_id" 12345678-9abc-4def-8123-456789abcdef
	there port add --addr "$FARBLK_SERVER"
	exits 3 "$FARBLK" map "$FARBLK_SERVER/none"
	is "the id that was written" "$(show "$C/host_id")" 12345678-9abc-4def-8123-456789abcdef
}

paths() {
	two_paths --no-path-timeout forever --heartbeat 5s --policy round-robin
	is "the settings" "$(cat "$C"/maps/e/{no_path_timeout_ms,heartbeat_ms,reconnect_max_ms,policy} | xargs)" "-1 5000 1000 round-robin"
	here path add e "$FARBLK_SERVER:7421"
	here map "$FARBLK_SERVER/e"
	is "the device of a second map" "$(cat /run/stdout)" "$DEV"
	here -j path list e
	is "path list -j" "$(json '.schema, .paths[].name, .paths[].state' | xargs)" "farblk.path-list/1 0 1 live live"
	random /run/data 4
	must direct_write /run/data "$DEV"
	there port rm second
	wait_for 30 list_has '.state == "live" and .paths_live == 1 and .paths[1].state == "waiting" and .paths[1].next_try_ms != null' ||
		bad "without its second port: $("$FARBLK" -j list)"
	must direct_read "$DEV" /run/back count=4
	must cmp /run/data /run/back
	here list
	grep -q "^e .* live  *1/2 " /run/stdout || bad "list: $(cat /run/stdout)"
	grep -q "path 1 .*last error: nobody listens on $FARBLK_SERVER:7421" /run/stdout || bad "list: $(cat /run/stdout)"
	grep -q "hint: farblk port list  # on the server" /run/stdout || bad "list: $(cat /run/stdout)"
	here path add e "$FARBLK_SERVER:7421"
	grep -q "warning: path 1 is not up, and the kernel tries again: " /run/stderr || bad "path add: $(cat /run/stderr)"
	there port add --addr "$FARBLK_SERVER:7421" second
	wait_for 30 list_has '.paths_live == 2 and .paths[1].reconnects == 1 and .reconnects == 1' || bad "with its second port again: $("$FARBLK" -j list)"
	here path reconnect e 1
	grep -q "^map e: path 1 reconnected: .*, live" /run/stdout || bad "path reconnect: $(cat /run/stdout /run/stderr)"
	here path rm e 0
	is "paths that are left" "$(ls "$C/maps/e/paths")" 1
	exits 4 "$FARBLK" path reconnect e 1
	must direct_read "$DEV" /run/back count=4
	must cmp /run/data /run/back
	exits 3 "$FARBLK" path rm e 0
	exits 4 "$FARBLK" path rm e 1
	grep -q "farblk unmap e" /run/stderr || bad "path rm of the last one: $(cat /run/stderr)"
	here show e
	grep -q "paths up  *1/1" /run/stdout || bad "show: $(cat /run/stdout)"
	here unmap e
}

# No path is up: list says so at once, and what to do; the map comes back by itself.
no_path() {
	two_paths --no-path-timeout 15s
	there port rm first
	there port rm second
	wait_for 30 list_has '.state == "reconnecting" and .paths_live == 0' || bad "without ports: $("$FARBLK" -j list)"
	within 5 exits 5 "$FARBLK" map "$FARBLK_SERVER/e"
	grep -q F0216 /run/stderr || bad "map: $(cat /run/stderr)"
	is "rm of an export that is waited for" "$(remote "$FARBLK export rm e 2>/dev/null; echo \$?")" 4
	wait_for 30 list_has '.state == "failed"' || bad "after 15 s: $("$FARBLK" -j list)"
	within 5 here list
	grep -q "^e .* failed  *0/2 " /run/stdout || bad "list: $(cat /run/stdout)"
	grep -q "hint: # no path for 15 s (no_path_timeout): I/O fails until one is back" /run/stdout || bad "list: $(cat /run/stdout)"
	exits 5 "$FARBLK" remap e --yes
	there port add --addr "$FARBLK_SERVER" first
	within 20 here map "$FARBLK_SERVER/e" --wait 15s
	is "the device" "$(cat /run/stdout)" "$DEV"
	must direct_read "$DEV" /dev/null count=1
	there port rm first
	wait_for 30 list_has '.state == "reconnecting"' || bad "without ports again: $("$FARBLK" -j list)"
	within 20 here unmap e
}

# The server's memory is other memory: nobody is shown it who has not agreed.
new_contents() {
	local dev
	must serve e 8M
	here map "$FARBLK_SERVER/e"
	dev=$(cat /run/stdout)
	random /run/data 1
	must direct_write /run/data "$dev"
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/enable 1"
	wait_for 30 list_has '.state == "stale" and .last_error.code == "F0301"' || bad "after the export was made anew: $("$FARBLK" -j list)"
	exits 9 "$FARBLK" map "$FARBLK_SERVER/e"
	exits 2 "$FARBLK" remap e </dev/null
	grep -q GONE /run/stderr || bad "remap: $(cat /run/stderr)"
	exec 5<"$dev"
	exits 4 "$FARBLK" remap e --yes
	exec 5<&-
	is "the state meanwhile" "$(show "$C/maps/e/state")" stale
	here remap e --yes
	dev=$(cat /run/stdout)
	must direct_read "$dev" /run/back count=1
	must cmp -n $((1 << 20)) /run/back /dev/zero
	here remap e
	here unmap e
}

# An export that one map at a time may have, and a map that is away.
away() {
	two_paths --no-path-timeout 1s --heartbeat 2s
	here path rm e 0
	exits 4 "$FARBLK" map "$FARBLK_SERVER/e" --name other
	grep -q F0209 /run/stderr || bad "in use: $(cat /run/stderr)"
	there port rm second
	wait_for 30 list_has '.paths_live == 0' || bad "without its port: $("$FARBLK" -j list)"
	exits 4 "$FARBLK" map "$FARBLK_SERVER/e" --name other
	grep -q F0217 /run/stderr || bad "away: $(cat /run/stderr)"
	grep -q "farblk export deny e $(show "$C/host_name") --force" /run/stderr || bad "away: $(cat /run/stderr)"
	here map "$FARBLK_SERVER/e" --name other --wait 60s
	there port add --addr "$FARBLK_SERVER:7421" second
	wait_for 30 list_has '.state == "evicted" and .last_error.code == "F0302"' || bad "after another one had it: $("$FARBLK" -j list)"
	exits 9 "$FARBLK" map "$FARBLK_SERVER:7421/e"
	here unmap other
	here remap e --yes
	must direct_read "$(cat /run/stdout)" /dev/null count=1
	here unmap e
}

# Both sides say how commands and data are protected, and what would make them agree.
protection() {
	local host
	host=$(show "$C/host_name")
	back "null_disk fb0 8"
	there port add --addr "$FARBLK_SERVER"
	exits 2 "$FARBLK" export create e --ram 8M --protection seal
	there export create e --device "$BACK" --allow "$host" --protection crc32c
	exits 6 "$FARBLK" map "$FARBLK_SERVER/e"
	grep -q F0223 /run/stderr || bad "another protection: $(cat /run/stderr)"
	grep -qF "farblk map $FARBLK_SERVER/e --protection crc32c" /run/stderr || bad "no hint: $(cat /run/stderr)"
	is "maps that a failed map left" "$(ls "$C/maps")" ""
	exits 6 "$FARBLK" map "$FARBLK_SERVER/e" --protection seal
	grep -q F0219 /run/stderr || bad "sealed without a key: $(cat /run/stderr)"
	here map "$FARBLK_SERVER/e" --protection crc32c
	here -j list
	is "protection of the map" "$(json '.maps[0].protection')" crc32c
	remote "$FARBLK -j export list" >/run/stdout
	is "protection of the export" "$(json '.exports[0].protection')" crc32c
	here unmap e
	# The other way: the export as the map has it, by the lines of the hint.
	exits 6 "$FARBLK" map "$FARBLK_SERVER/e" --protection none
	sed -n '/on the server/,$p' /run/stderr | sed -nE 's/^ *(hint: )?((farblk export|echo) .*)/\2/p' >/run/remedy
	is "lines on the server" "$(wc -l </run/remedy)" 3
	must remote "$(sed "s|^farblk |$FARBLK |" /run/remedy)"
	here map "$FARBLK_SERVER/e"
	here unmap e
}

# Why a port cannot listen, and what keeps it from that.
port_reasons() {
	not_local
	there_fails "port add lo --addr 127.0.0.1" F0106 "127.0.0.1 is a loopback address" "rdma link"
	there_fails "port add lo --addr ::1" F0106 "::1 is a loopback address" "rdma link"
	there_fails "port add x --addr 192.0.2.1" F0214 "no interface of this host has the address 192.0.2.1" "ip address"
	there_fails "port add x --addr fe80::1%eth0" F0101 "with a zone" "fd00::/8"
	is "ports" "$(remote "ls $C/ports")" ""
	there port add all --addr 0.0.0.0
	there_fails "port add p --addr $FARBLK_SERVER" F0215 "port all listens on 0.0.0.0:7420" "farblk port rm all"
	there port rm all
	there port add p --addr "$FARBLK_SERVER"
	there_fails "port add q --addr $FARBLK_SERVER" F0215 "port p listens on $FARBLK_SERVER:7420" "farblk port rm p"
	there port rm p
}
# there_fails COMMAND WORDS...: a command of the tool that fails on the server, and says all that.
there_fails() {
	local words got
	got=$(remote "$FARBLK $1 2>&1") && bad "no failure: $1"
	for words in "${@:2}"; do [[ $got == *"$words"* ]] || bad "$1: no '$words' in '$got'"; done
}

# What --dry-run prints is shell that does the same.
dry_run() {
	local dev
	must serve e 8M
	here --dry-run map "$FARBLK_SERVER/e" --name m
	is "maps after a dry run" "$(ls "$C/maps")" ""
	must bash -e /run/stdout
	is "state after running what it printed" "$(show "$C/maps/m/state")" live
	here --dry-run unmap m
	must bash -e /run/stdout
	is "maps after running what it printed" "$(ls "$C/maps")" ""
}

scenario whole_way "port, export, discover, map, list, unmap, rm"
scenario valid_json "-j gives JSON with the documented members"
scenario port_reasons "a port that cannot listen says why"
scenario exit_codes "exit codes and error codes tell causes apart"
scenario lasting_identity "the first object gives a host an identity that lasts"
scenario paths "paths come and go, and list tells of one that is down"
scenario no_path "no path is up: list and map say so, and the map comes back"
scenario new_contents "a stale map, and remap"
scenario away "an export that is kept for a map that is away, and an evicted map"
scenario protection "export and map differ in their protection, and are made to agree"
scenario dry_run "--dry-run prints shell that does the same"
run_scenarios
