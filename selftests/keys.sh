#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Keys: a host with one is let in by proving it, nobody else is in its name, and the server proves
# it first.
. "$(dirname "$0")/lib.sh"

# id_of KEY: the name of a key.
id_of() { python3 -c 'import base64, hashlib, hmac, sys; print(hmac.new(base64.b64decode(sys.argv[1][8:])[:32], b"farblk key id", hashlib.sha256).hexdigest()[:16])' "$1"; }

# start: an export e of KIND that has an entry for this host, with the key KEY.
start() {
	needs python3
	KEY=$(new_key) OTHER=$(new_key) HOST=$(show "$C/host_name")
	if [ "${KIND:-ram}" = ram ]; then
		must serve e 8M allow_any_host=0
	else
		back "null_disk fbk 8 blocksize=512 memory_backed=1"
		must serve_block e "$BACK" allow_any_host=0
	fi
	must admit e "$HOST" "$KEY"
}
entry() { remote "store $C/exports/e/hosts/$HOST/$1 '$2'"; }
with_key() { must store "$C/maps/m/key" "$1"; }
clients() { remote "show $C/exports/e/clients"; }
forgeries() { remote "counter $COUNTERS forgeries"; }

# not_mapped ERRNO REGEX: enabling map m ends so, and the server has nothing of it.
not_mapped() {
	refused "$1" "$C/maps/m/enable" 1 "$2"
	note "$(show "$C/maps/m/last_error")"
	is clients "$(clients)" 0
}
NO_KEY="the server wants a key$" NOT_ADMITTED="not admitted, or the key is wrong$" NO_PROOF="the server did not prove that it has the key$"

keyed() {
	start
	must map_make m e
	with_key "$KEY"
	must map_on m
	is clients "$(clients)" 1
	must fio --name=keyed --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bsrange=4k-64k --size=8m --iodepth=8 --verify=crc32c >/run/fio.out
	is "violations" "$(remote "counter $COUNTERS violations")" 0
	same_data "forgeries" "$(forgeries)" 0
	# The keys are those of one session: the next one has others.
	must store "$C/maps/m/enable" 0
	must map_on m
	must unmap m
}

not_keyed() {
	start
	must admit e elsewhere "$OTHER"
	must map_make m e
	not_mapped ENOKEY "$NO_KEY"
	with_key "$(new_key)"
	not_mapped EKEYREJECTED "$NO_PROOF"
	# A key that the server knows, but as another host's.
	with_key "$OTHER"
	not_mapped EKEYREJECTED "$NOT_ADMITTED"
	with_key "$KEY"
	must map_on m
	must store "$C/maps/m/enable" 0
	# Who has proved the key of the export is told what is the matter with it.
	must remote "store $C/exports/e/enable 0"
	not_mapped ENXIO "is not enabled"
	must remote "store $C/exports/e/enable 1"
	must map_on m
	must unmap m
	# What there is, and who may have it, is told to nobody that has proved no key.
	must remote "export_ram other 8M allow_any_host=0; export_ram off 8M allow_any_host=0 && store $C/exports/off/enable 0"
	must map_make m e
	for export in nothing other off; do
		must store "$C/maps/m/export" $export
		with_key ""
		not_mapped ENOKEY "$NO_KEY"
		with_key "$OTHER"
		not_mapped EKEYREJECTED "$NOT_ADMITTED"
	done
}

# A server that does not have the key: it does not get so far as to let the map in.
impostor() {
	local logins
	start
	logins=$(remote "counter $COUNTERS logins")
	must map_make m e
	with_key "$OTHER"
	must entry key ""
	not_mapped EKEYREJECTED "$NO_PROOF"
	is "logins" "$(remote "counter $COUNTERS logins")" "$logins"
}

files() {
	local file path
	start
	must map_make m e
	with_key "$KEY"
	is "key_id of the map" "$(show "$C/maps/m/key_id")" "$(id_of "$KEY")"
	is "key_id of the host" "$(remote "show $C/exports/e/hosts/$HOST/key_id")" "$(id_of "$KEY")"
	is "key_next_id" "$(remote "show $C/exports/e/hosts/$HOST/key_next_id")" ""
	must entry key_next "$OTHER"
	is "key_next_id" "$(remote "show $C/exports/e/hosts/$HOST/key_next_id")" "$(id_of "$OTHER")"
	is "mode of key of the map" "$(stat -c %a "$C/maps/m/key")" 200
	is "what it shows" "$(cat "$C/maps/m/key" 2>&1 | grep -c farblk1)" 0
	for file in key key_next; do
		path=$C/exports/e/hosts/$HOST/$file
		is "mode of $file of the host" "$(remote "stat -c %a $path")" 200
		is "what $file shows" "$(remote "cat $path 2>&1 | grep -c farblk1")" 0
	done
	for path in "${KEY%?}" "$KEY=" "farblk2:${KEY#*:}" "${KEY%?}!" "a passphrase" "farblk1:"; do
		is "a key '${path:0:12}...'" "$(errno_of store "$C/maps/m/key" "$path")" EINVAL
	done
	is "key_id after these" "$(show "$C/maps/m/key_id")" "$(id_of "$KEY")"
	with_key ""
	is "key_id without a key" "$(show "$C/maps/m/key_id")" ""
}

# A new key takes the place of the old one while verified I/O goes on.
rotation() {
	local since
	start
	must map_make m e
	with_key "$KEY"
	must map_on m
	fio --name=rotation --filename="$DEV" --direct=1 --ioengine=libaio --rw=randwrite --bsrange=4k-32k --size=8m --iodepth=4 --rate_iops=100 --time_based \
		--runtime=600 --verify=crc32c --verify_fatal=1 --verify_backlog=16 >/run/fio.out 2>&1 &
	FIO=$!
	at_exit "kill $FIO 2>/dev/null"
	must wait_for 20 busy 0
	must entry key_next "$OTHER"
	is "clients with a second key" "$(clients)" 1
	with_key "$OTHER"
	# The session that has proved the old one ends when that goes.
	must entry key "$OTHER"
	must entry key_next ""
	must wait_for 30 live
	must wait_for 20 busy "$(io "$DEV" writes)"
	is "key of the host" "$(remote "show $C/exports/e/hosts/$HOST/key_id")" "$(id_of "$OTHER")"
	# The key goes, and with it the session. The map keeps its place, and comes back with the
	# key.
	since=$(now_ms)
	must entry key "$KEY"
	is "clients" "$(clients)" 0
	note "gone after $(($(now_ms) - since)) ms"
	must wait_for 30 away
	must wait_for 30 has_error "$NO_PROOF"
	must entry key_next "$OTHER"
	must wait_for 20 live
	must wait_for 20 busy "$(io "$DEV" writes)"
	kill -INT $FIO
	wait $FIO
	fio_worked
	must unmap m
}

# A host that needed no key needs one from the moment that its entry has one.
first_key() {
	start
	must entry key ""
	must map_make m e
	must map_on m
	must entry key "$KEY"
	is "clients" "$(clients)" 0
	must wait_for 30 has_error "$NO_KEY"
	with_key "$KEY"
	must wait_for 30 live
	# Who has proved the last key needs none any more, and goes on.
	must entry key ""
	is "clients" "$(clients)" 1
	must map_io
	must unmap m
}
map_io() { dd if=/dev/zero of="$DEV" bs=64k count=4 oflag=direct status=none && direct_read "$DEV" /dev/null count=1; }

# A sealed export is for maps that have proved a key and ask for the same. A map that loses its key
# stays until its path is lost, and comes back with the key.
sealed() {
	local sealed="protection=seal needs a key, and the map has none$"
	KIND=block start
	must remote "store $C/exports/e/enable 0 && store $C/exports/e/protection seal && store $C/exports/e/enable 1"
	must map_make m e
	not_mapped ENOKEY "$NO_KEY"
	with_key "$KEY"
	not_mapped EPROTOTYPE "^EPROTOTYPE the export has protection=seal, the map protection=none$"
	must store "$C/maps/m/protection" crc32c
	not_mapped EPROTOTYPE "^EPROTOTYPE the export has protection=seal, the map protection=crc32c$"
	must store "$C/maps/m/protection" seal
	with_key "$OTHER"
	not_mapped EKEYREJECTED "$NO_PROOF"
	with_key ""
	not_mapped ENOKEY "$sealed"
	with_key "$KEY"
	must map_on m
	must map_io
	with_key ""
	must map_io
	must remote "store $C/ports/p/enable 0 && store $C/ports/p/enable 1"
	must wait_for 30 has_error "$sealed"
	with_key "$KEY"
	must wait_for 20 live
	must map_io
	must unmap m
}

# On a server that has keys, a map of a host without one that is removed from an export hears of it.
removed() {
	start
	must admit e elsewhere "$OTHER"
	must entry key ""
	must map_make m e
	must map_on m
	must remote "rmdir $C/exports/e/hosts/$HOST"
	must wait_for 30 evicted
	# An entry admits nobody before its access is written.
	must remote "mkdir $C/exports/e/hosts/$HOST"
	is "access" "$(remote "show $C/exports/e/hosts/$HOST/access")" none
	must store "$C/maps/m/enable" 0
	not_mapped ENOKEY "$NO_KEY"
	must entry key "$KEY"
	with_key "$KEY"
	not_mapped EACCES "not admitted"
	must entry access rw
	must map_on m
	must entry access none
	is "clients" "$(clients)" 0
	must wait_for 30 evicted
	must store "$C/maps/m/enable" 0
}
evicted() { [ "$(show "$C/maps/m/state")" = evicted ]; }

busy() { [ "$(io "$DEV" writes)" -gt "$1" ]; }
live() { [ "$(show "$C/maps/m/state")" = live ] && [ "$(clients)" = 1 ]; }
away() { [ "$(remote "show $C/exports/e/clients_away")" = 1 ]; }
has_error() { grep -q "$1" "$C"/maps/m/paths/*/last_error; }

# The key is in the memory of the kernel as long as a map has it, and nowhere else, nor later. This
# one was made elsewhere: a program that makes a key leaves it in its memory.
KNOWN_KEY=farblk1:sNRJqR6+NG0/ZXUFDeMqonMe+rt/et8u6uSLpsZSzzo1fbl3
secret() {
	local before
	needs python3
	[ -r /proc/kcore ] || skip "this kernel does not show its memory"
	# A host that is its own server has the key of the export.
	two_hosts || skip "the server is this host"
	start
	must remote "store $C/exports/e/hosts/$HOST/key $KNOWN_KEY"
	before=$(python3 "$HERE/memory.py" "$KNOWN_KEY") || skip "$before"
	is "the key in memory before" "$before" 0
	must map_make m e
	with_key "$KNOWN_KEY"
	must map_on m
	must map_io
	[ "$(python3 "$HERE/memory.py" "$KNOWN_KEY")" -ge 1 ] || bad "the key of a map is not found"
	is "the key in the log" "$(dmesg | grep -cF "$KNOWN_KEY")" 0
	is "files that have it" "$(grep -rlsF "$KNOWN_KEY" "$C" "$D" /sys/module/farblk /sys/block/farblk*/ | tr '\n' ' ')" ""
	must unmap m
	is "the key in memory without a map" "$(python3 "$HERE/memory.py" "$KNOWN_KEY")" 0
	must remove_module
	is "the key in memory without the module" "$(python3 "$HERE/memory.py" "$KNOWN_KEY")" 0
	must load_module
}

# A client in user space that has keys.
hostile() {
	local before rc
	needs python3
	needs_user_rdma
	needs_module null_blk
	KEY=$(new_key) OTHER=$(new_key)
	export KEY OTHER
	back "null_disk fbk 32 blocksize=512"
	must serve_block e "$BACK" max_clients=1024 allow_any_host=0
	back "null_disk fbo 32 blocksize=512"
	must serve_block o "$BACK" max_clients=1024 allow_any_host=0
	back "null_disk fbp 32 blocksize=512"
	must serve_block open "$BACK" max_clients=1024
	must admit e hostile "$KEY"
	must admit o other "$OTHER"
	before=$(forgeries)
	python3 "$HERE/hostile_keys.py" "$FARBLK_SERVER" keys 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	[ $rc != 4 ] || skip "user space has no RDMA"
	[ $rc = 0 ] || wrong "hostile_keys.py ends with $rc"
	same_data "forgeries" "violations $(($(forgeries) - before))" "$(tail -n 1 /run/hostile.out)"
	wait_for 30 nobody || bad "what the server still has: $(remote "grep . $C/exports/*/clients")"
}

# A server in user space, which has a key or not, on this host.
hostile_server() {
	local rc
	needs python3
	needs_user_rdma
	KEY=$(new_key)
	export KEY
	must server_address 10.9.0.77
	must server_address 10.9.0.78
	python3 "$HERE/hostile_server_keys.py" 10.9.0.77 10.9.0.78 keys 2>&1 | tee /run/hostile.out | sed -u 's/^/# /'
	rc=${PIPESTATUS[0]}
	ip addr del 10.9.0.77/24 dev "$(rxe_netdev)"
	ip addr del 10.9.0.78/24 dev "$(rxe_netdev)"
	[ $rc != 4 ] || skip "user space has no RDMA"
	[ $rc = 0 ] || wrong "hostile_server_keys.py ends with $rc"
}

nobody() { remote "awk '{n += \$1} END {exit n != 0}' $C/exports/*/clients"; }

both keyed "a map with a key does verified I/O, again and again"
scenario not_keyed "no key, another key, another host's key: what they are told, and no more"
scenario impostor "a server that does not have the key"
scenario files "the files of keys show their names alone, and take keys alone"
both rotation "a new key while I/O goes on; a key that is removed"
scenario first_key "a host that needed no key needs one, and the other way round"
scenario sealed "a sealed export wants a key, and maps that ask for it"
scenario removed "a host without a key that is removed, and one whose access is none"
scenario secret "the key in memory, in files and in the log"
scenario hostile "a client with a key that breaks the protocol, and what is changed on the way"
scenario hostile_server "a server that breaks the protocol of keys, and one that has none"
run_scenarios
