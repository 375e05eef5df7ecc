#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What the tool keeps over a reboot: the files in /etc/farblk, the identity of a host, commands that
# were killed or run at once. The module is unloaded in place of a reboot.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cli.sh"

ETC=/etc/farblk
BACKING_FILE=/var/tmp/farblk-keep.img
# tidy: neither host has files or loop devices of these tests any more.
tidy() {
	clean_all
	rm -rf $ETC
	remote "losetup --noheadings --output NAME --associated $BACKING_FILE | xargs -r losetup --detach; rm -rf $ETC $BACKING_FILE"
} >/dev/null 2>&1
# fresh: begins without such files, and ends so.
fresh() { two_hosts || skip "one host is both"; tidy; at_exit tidy; }
# reload_random: the server's module is loaded anew, with another random identity.
reload_random() { remote "clean; remove_module && NO_HOST_ID=1 load_module"; }
live() { list_has '.state == "live"'; }

# The server forgets all, and restores it: the same UUIDs and instance of identity; the map of a
# block export goes on with its data.
server_restored() {
	local dev uuids
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	fresh
	there port add --addr "$FARBLK_SERVER"
	there export create vol --file $BACKING_FILE --size 64M --allow "$(show "$C/host_name")"
	there export create other --ram 8M --allow node-z:ro --max-clients 3 --block-size 512
	there config save
	uuids=$(remote "cat $C/exports/{vol,other}/uuid $C/host_id" | xargs)
	is "words of uuids" "$(wc -w <<<"$uuids")" 3
	is "the result of diff" "$(remote "$FARBLK config diff; echo \$?")" 0
	here map "$FARBLK_SERVER/vol" --no-path-timeout 60s --reconnect-max 1s --heartbeat 10s
	dev=$(cat /run/stdout)
	random /run/data 1
	must direct_write /run/data "$dev"
	must blockdev --flushbufs "$dev"
	# A stop that is planned: what had the export is written down.
	there export disable vol --force
	grep -q "^[0-9a-f-]* [0-9]*$" <<<"$(remote "cat $ETC/registrations")" || bad "registrations: $(remote "cat $ETC/registrations")"
	must reload_random
	remote "losetup --noheadings --output NAME --associated $BACKING_FILE | xargs -r losetup --detach"
	is "lines of diff after the loss" "$(remote "$FARBLK config diff | grep -c '^- '")" 3
	is "what restore says" "$(remote "$FARBLK config restore --server; echo \$?" | xargs)" "export other restored export vol restored port 1 restored 0"
	is "uuids and identity" "$(remote "cat $C/exports/{vol,other}/uuid $C/host_id" | xargs)" "$uuids"
	is "access of the host of other" "$(remote "cat $C/exports/other/hosts/node-z/access $C/exports/other/max_clients $C/exports/other/block_size" | xargs)" "ro 3 512"
	is "registrations that are left" "$(remote "cat $ETC/registrations")" ""
	wait_for 20 live || bad "the map after restore: $("$FARBLK" -j list)"
	must direct_read "$dev" /run/back count=1
	must cmp -n $((1 << 20)) /run/data /run/back
	# Again: nothing changes, and the map does not notice.
	is "what another restore says" "$(remote "$FARBLK config restore; echo \$?" | xargs)" "export other unchanged export vol unchanged port 1 unchanged 0"
	is "the result of diff" "$(remote "$FARBLK config diff; echo \$?")" 0
	is "reconnects" "$("$FARBLK" -j list | jq '.maps[0].reconnects')" 1
	here unmap vol
}

# The server is away for longer than the lease of a map (1 s, five heartbeats, 5 s). After an
# orderly stop it remembers the map, which goes on. After a crash it does not, and the map is
# evicted.
planned_restart() {
	local dev
	fresh
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	there port add --addr "$FARBLK_SERVER"
	there export create vol --file $BACKING_FILE --size 16M --allow "$(show "$C/host_name")"
	there config save
	here map "$FARBLK_SERVER/vol" --no-path-timeout 1s --heartbeat 200ms --reconnect-max 500ms
	dev=$(cat /run/stdout)
	there export disable vol --force
	must reload_random
	sleep 9
	there config restore
	wait_for 30 live || bad "the map after an orderly stop: $("$FARBLK" -j list)"
	must wait_for 30 direct_read "$dev" /dev/null count=1
	must reload_random
	sleep 9
	there config restore
	wait_for 30 list_has '.state == "evicted"' || bad "the map after a crash: $("$FARBLK" -j list)"
	here unmap vol
}

# The client forgets all: its map has the same settings, and its place with max_clients 1 at once.
client_restored() {
	local id before
	fresh
	must serve e 8M
	here map "$FARBLK_SERVER/e" --name m --persist --no-path-timeout forever --heartbeat 500ms --policy round-robin
	[ -s $ETC/client.d/m.toml ] || bad "--persist wrote no file"
	id=$(show "$C/host_id")
	is "the file with the identity" "$(head -n 1 $ETC/host_id)" "$id"
	before=$(cd "$C/maps/m" && cat export access no_path_timeout_ms heartbeat_ms policy uuid paths/0/addr)
	is "lines of settings" "$(wc -l <<<"$before")" 7
	store "$C/maps/m/enable" force
	clean
	must remove_module
	NO_HOST_ID=1 must load_module
	exits 1 "$FARBLK" config diff
	grep -q "^- map m: in $ETC/client.d/m.toml:" /run/stdout || bad "diff: $(cat /run/stdout)"
	within 10 here config restore --map m
	is "what restore says" "$(xargs </run/stdout)" "map m restored"
	is "the identity" "$(show "$C/host_id") $(show "$C/host_id_source")" "$id written"
	is "the settings" "$(cd "$C/maps/m" && cat export access no_path_timeout_ms heartbeat_ms policy uuid paths/0/addr)" "$before"
	here config diff
	exits 3 "$FARBLK" config restore --map none
	here unmap m
	grep -q "still in $ETC/client.d/m.toml" /run/stdout || bad "unmap: $(cat /run/stdout)"
	remote "store $C/exports/e/enable 0"
	within 8 exits 5 "$FARBLK" config restore --map m
	remote "store $C/ports/p/enable 0"
	within 8 exits 5 "$FARBLK" config restore --map m
	is "maps that were left" "$(ls "$C/maps")" ""
	here unmap --forget m
	[ ! -e $ETC/client.d/m.toml ] || bad "--forget left the file"
	exits 3 "$FARBLK" unmap --forget m
}

# One bad item does not stop the others, and what runs is not harmed.
partial() {
	local uuid
	fresh
	there export create good --ram 8M --allow-any-host
	there port add --addr "$FARBLK_SERVER"
	there config save
	uuid=$(remote "cat $C/exports/good/uuid")
	remote "mkdir -p $ETC/server.d; printf '[export.bad]\ndevice = \"/dev/none\"\n' >$ETC/server.d/bad.toml; printf '[export.worse]\nram = \"8M\"\ncolour = 1\n[port\n' >$ETC/server.d/worse.toml"
	here map "$FARBLK_SERVER/good"
	is "restore beside a map" "$(remote "set -o pipefail; $FARBLK config restore | grep -v '^ ' | cut -d : -f 1"; echo $?)" \
		"$(printf '%s\n' "file $ETC/server.d/worse.toml  FAILED F0501" "export good  unchanged" "export bad  FAILED F0111" "port 1  unchanged" 8)"
	must live
	here unmap good
	must reload_random
	is "exit code of restore" "$(remote "$FARBLK config restore >/dev/null 2>&1; echo \$?")" 8
	is "the uuid" "$(remote "cat $C/exports/good/uuid")" "$uuid"
	is "what was restored" "$(remote "ls $C/exports $C/ports | grep -v : | xargs")" "good 1"
	is "exit code of check" "$(remote "$FARBLK config check >/run/check; echo \$?; grep -c 'worse.toml:4: error' /run/check" | xargs)" "1 1"
	is "exit code of diff" "$(remote "$FARBLK config diff >/dev/null; echo \$?")" 1
	# Nobody knows what the broken file has: what is saved beside it may be there twice.
	is "exit code of save beside it" "$(remote "cp $ETC/server.toml /run/before; $FARBLK config save >/dev/null 2>&1; echo \$?; cmp $ETC/server.toml /run/before" | xargs)" 8
	must remote "rm $ETC/server.d/worse.toml"
	# Saving what is there now would lose nothing here, but does if the file has more.
	remote "printf '[export.more]\ndevice = \"/dev/none\"\n' >>$ETC/server.toml"
	is "exit code of save" "$(remote "$FARBLK config save >/dev/null 2>&1; echo \$?")" 1
	must remote "grep -q more $ETC/server.toml"
	there config save --prune
	must remote "! grep -q more $ETC/server.toml && grep -q more $ETC/server.toml.1 && grep -q good $ETC/server.toml"
}

# A save that is killed at any time leaves a file that can be read.
killed_save() {
	local n
	fresh
	there export create e --ram 8M --allow-any-host
	there config save
	n=$(remote "for n in {1..8}; do
		echo '# a change' >>$ETC/server.toml
		timeout -s KILL 0.0\$n $FARBLK config save >/dev/null 2>&1
		$FARBLK -q config check >/dev/null && grep -q export.e $ETC/server.toml && echo good
	done 2>/dev/null | wc -l")
	is "files that can be read after a save that was killed" "$n" 8
	there config save
	is "exit code of diff" "$(remote "$FARBLK config diff; echo \$?")" 0
}

# Two commands at once: both succeed, there is one loop device, and the file stays.
two_at_once() {
	local n line
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	fresh
	line="export create vol --file $BACKING_FILE --size 16M --allow-any-host"
	for n in 1 2 3; do
		is "exit codes of two commands" "$(remote "$FARBLK -q $line & $FARBLK -q $line; a=\$?; wait \$!; echo \$a \$?")" "0 0"
		is "loop devices, state, file" "$(remote "losetup --noheadings --output NAME --associated $BACKING_FILE | wc -l; cat $C/exports/vol/state; stat -c %s $BACKING_FILE" | xargs)" "1 online $((16 << 20))"
		# One of them may have removed the file that the other one had made.
		must remote "$FARBLK -q $line & $FARBLK -q export rm vol --force; wait \$!; $FARBLK -q $line"
		is "the backing file is there" "$(remote "losetup --noheadings --output BACK-FILE --associated $BACKING_FILE")" $BACKING_FILE
		there export rm vol
		must remote "rm $BACKING_FILE"
	done
}

# The stale number of a loop device: after a reboot it is another file's.
loop_numbers() {
	local other=/var/tmp/farblk-keep-other.img
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	fresh
	at_exit "remote 'losetup --noheadings --output NAME --associated $other | xargs -r losetup --detach; rm -f $other'"
	there export create vol --file $BACKING_FILE --size 16M --allow-any-host
	there config save
	there export rm vol
	must remote "truncate -s 16M $other; losetup --find $other"
	there config restore
	is "the file of the export" "$(remote "losetup --noheadings --output BACK-FILE \$(cat $C/exports/vol/device_path)")" $BACKING_FILE
}

# Clients go on to use the file that was there, and nothing says so but the kernel.
lost_file() {
	local got
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	fresh
	there export create vol --file $BACKING_FILE --size 16M --allow-any-host
	there config save
	must remote "mv $BACKING_FILE $BACKING_FILE.old && rm $BACKING_FILE.old && truncate -s 16M $BACKING_FILE"
	got=$(remote "$FARBLK config save --prune 2>&1") && fail "it was saved: $got"
	grep -q "was removed or replaced" <<<"$got" || fail "the reason: $got"
	remote "grep -r deleted /etc/farblk" && fail "there is a name that is none"
	remote "$FARBLK export list" | grep -q "$BACKING_FILE was removed or replaced: what clients" || fail "export list says nothing"
	remote "$FARBLK doctor" | grep -q "export vol: its file $BACKING_FILE was removed" || fail "doctor says nothing"
	there export rm vol
}

scenario server_restored "a server restores its exports, and the map of one goes on"
scenario planned_restart "after an orderly stop a server remembers the map of an export"
scenario client_restored "a client restores its map, with its identity; --persist and --forget"
scenario partial "a restore goes on after an error, and harms nothing that runs"
scenario killed_save "a save that was killed leaves a file that can be read"
scenario two_at_once "two commands at once make one export"
scenario loop_numbers "a file is restored, whatever loop device has its number"
scenario lost_file "a file that was replaced is not saved, and doctor says so"
run_scenarios
