#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The exports of the farblk tool: files, commands that were killed, who is admitted.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/cli.sh"

BACKING_FILE=/var/tmp/farblk-tool.img
forget_file() {
	clean_all
	remote "losetup --noheadings --output NAME --associated $BACKING_FILE | xargs -r losetup --detach; rm -f $BACKING_FILE"
} >/dev/null 2>&1
has_size() { [ "$(blockdev --getsize64 "$1")" = "$2" ]; }

# A file of the server is a disk here; when the export goes, the file stays and its loop device
# goes.
file_export() {
	local dev file=$BACKING_FILE mib=$((1 << 20))
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	trap forget_file EXIT
	there port add --addr "$FARBLK_SERVER"
	there export create vol --file "$file" --size 64M --allow-any-host
	is "direct I/O" "$(remote "losetup --noheadings --output DIO,REF --associated $file" | xargs)" "1 farblk"
	there export create vol --file "$file" --size 64M --allow-any-host
	is "loop devices of the file" "$(remote "losetup --noheadings --output NAME --associated $file | wc -l")" 1
	here discover "$FARBLK_SERVER"
	grep -q '^vol  *block  *64.0 MiB  *two-sided ' /run/stdout || bad "discover: $(cat /run/stdout)"
	here map "$FARBLK_SERVER/vol" --queues 1 --depth 16 --inline-size 4K --io-timeout 10s
	dev=$(cat /run/stdout)
	is "the disk's size" "$(blockdev --getsize64 "$dev")" $((64 * mib))
	here -j list
	is "the map's mode" "$(json '.maps[0].mode')" two_sided
	random /run/data 1
	must direct_write /run/data "$dev"
	must blockdev --flushbufs "$dev"
	same_data "what the file has" "$(remote "head -c 1M $file | sha256sum")" "$(sha256sum </run/data)"
	there export resize vol --size 128M
	wait_for 30 has_size "$dev" $((128 * mib)) || bad "after resize the disk has $(blockdev --getsize64 "$dev") bytes"
	is "exit code of making it smaller" "$(remote "$FARBLK export resize vol --size 1M 2>/dev/null; echo \$?")" 2
	must remote "truncate -s 64M $file"
	is "exit code for a file that was cut off" "$(remote "$FARBLK export resize vol 2>/dev/null; echo \$?")" 2
	is "the loop device's size then" "$(remote "blockdev --getsize64 \$(cat $C/exports/vol/device_path)")" $((128 * mib))
	must remote "truncate -s 128M $file"
	here unmap vol
	there export rm vol
	is "loop devices that stay" "$(remote "losetup --associated $file")" ""
	is "the file's size" "$(remote "stat -c %s $file")" $((128 * mib))
}

# An image that was made on blocks of 512 bytes lies on a disk with blocks of 4096: clients find its
# partition if the export has the blocks of the image.
image_blocks() {
	local dev file=/run/mnt/vm.img
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	needs_module null_blk
	needs sfdisk mkfs.ext4
	not_local
	back "null_disk fbn 128 blocksize=4096"
	must remote "mkfs.ext4 -q $BACK && mkdir -p /run/mnt && modprobe -q ext4; mount $BACK /run/mnt && truncate -s 32M $file && \
		printf 'label: gpt\nstart=2048,size=4096\n' | sfdisk -q $file"
	there port add --addr "$FARBLK_SERVER"
	remote "$FARBLK export create vm --file $file --allow-any-host 2>&1" >/run/stdout || bad "export create: $(cat /run/stdout)"
	grep -q "has a partition table for blocks of 512 bytes, and clients, which see blocks of 4096, find no partitions: --block-size 512 shows them" /run/stdout ||
		bad "no warning: $(cat /run/stdout)"
	is "another block size" "$(remote "$FARBLK export create vm --file $file --allow-any-host --block-size 512 2>&1; echo \$?" | grep -E '^1$|block_size is 4096, not 512' | wc -l)" 2
	here map "$FARBLK_SERVER/vm"
	dev=$(cat /run/stdout)
	is "the blocks of the disk" "$(blockdev --getss "$dev")" 4096
	[ ! -e "${dev}p1" ] || bad "blocks of 4096 show the partition"
	here unmap vm
	there export rm vm
	there export create vm --file "$file" --allow-any-host --block-size 512
	here map "$FARBLK_SERVER/vm"
	dev=$(cat /run/stdout)
	is "the blocks of the disk" "$(blockdev --getss "$dev")" 512
	wait_for 20 test -b "${dev}p1" || bad "there is no ${dev}p1"
	random /run/data 1
	must direct_write /run/data "${dev}p1"
	here unmap vm
	there export rm vm
	same_data "what the image has" "$(remote "tail -c +$((1 + (1 << 20))) $file | head -c 1M | sha256sum")" "$(sha256sum </run/data)"
	must remote "umount /run/mnt"
}

# An export create that was killed can be run again, or removed, wherever it was: each beginning of
# what the dry run prints stands for one. A short test takes every fifth of them, from a random one
# on. An export rm is killed after two steps.
killed_export() {
	local file=$BACKING_FILE create n lines step=1
	! is_short || step=5
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	trap forget_file EXIT
	for create in "export create vol --ram 8M --allow node-z" "export create vol --file $file --size 64M --allow node-z --max-clients 2"; do
		lines=$(remote "set -o pipefail; $FARBLK --dry-run $create | wc -l") && ((lines >= step)) || die "the dry run fails, or prints too little: $lines"
		for ((n = 1 + SRANDOM % step; n <= lines; n += step)); do
			note "killed after $n of $lines steps: $create"
			must remote "$FARBLK --dry-run $create | head -n $n | bash -e && [ -d $C/exports/vol ]"
			there "$create"
			is "the state after $n of $lines steps" "$(remote "cat $C/exports/vol/state")" online
			must remote "$FARBLK --dry-run export rm vol | head -n 2 | bash -e"
			there export rm vol
			is "what is left of the export" "$(remote "ls $C/exports; losetup --associated $file 2>/dev/null")" ""
			must remote "rm -f $file; $FARBLK --dry-run $create | head -n $n | bash -e"
			there export rm vol
			is "what is left after $n of $lines steps" "$(remote "ls $C/exports; losetup --associated $file 2>/dev/null")" ""
			must remote "rm -f $file"
		done
	done
}

# What cannot be exported is refused with its reason, and nothing is made.
bad_devices() {
	local item code
	remote "grep -qw block $C/features" || skip "the module has no block exports"
	for item in "3 --device /dev/none" "2 --device /dev/null" "3 --file /var/tmp/none" "2 --file /dev/null" "2 --file /var/tmp/x --size 1000"; do
		code=$(remote "$FARBLK export create x ${item#* } 2>/dev/null; echo \$?")
		is "exit code of ${item#* }" "$code" "${item%% *}"
	done
	is "exports that were left" "$(remote "ls $C/exports")" ""
}

# The hint of F0217 also works for an export that admits any host, which has no entry to remove.
denied() {
	two_paths --no-path-timeout forever --heartbeat 5s
	here path rm e 0
	there port rm second
	wait_for 30 list_has '.paths_live == 0' || bad "without its port: $("$FARBLK" -j list)"
	exits 4 "$FARBLK" map "$FARBLK_SERVER/e" --name other
	grep -q F0217 /run/stderr || bad "away: $(cat /run/stderr)"
	is "deny of a host that is away" "$(remote "$FARBLK export deny e $(show "$C/host_name") 2>/dev/null; echo \$?")" 4
	there export deny e "$(show "$C/host_name")" --force
	here map "$FARBLK_SERVER/e" --name other
	must direct_read "$(cat /run/stdout)" /dev/null count=1
	there port add --addr "$FARBLK_SERVER:7421" second
	wait_for 30 list_has '.state == "evicted"' || bad "after it was denied: $("$FARBLK" -j list)"
	here unmap other
	here unmap e
}

# Of an export with an entry for each host: when deny is done, no session of the host is left, and
# no map of it.
denied_entry() {
	local host
	host=$(show "$C/host_name")
	must serve e 8M allow_any_host=0
	there export allow e "$host"
	here map "$FARBLK_SERVER/e"
	exec 5<"/dev/$(show "$C/maps/e/device")"
	is "deny of a host with a map" "$(remote "$FARBLK export deny e $host 2>/dev/null; echo \$?")" 4
	[ -n "$(remote "ls $C/exports/e/hosts")" ] || bad "deny without --force removed the entry"
	there export deny e "$host" --force
	is "what evict finds after deny" "$(remote "errno_of store $C/exports/e/evict $host")" ENOENT
	is "deny of a host without an entry or a map" "$(remote "$FARBLK export deny e $host 2>/dev/null; echo \$?")" 3
	wait_for 30 list_has '.state == "evicted"' || bad "after it was denied: $("$FARBLK" -j list)"
	exec 5<&-
	here unmap e
	# As if a call was killed after it had removed the entry.
	there export allow e "$host"
	here map "$FARBLK_SERVER/e"
	must remote "rmdir $C/exports/e/hosts/$host"
	remote "$FARBLK export deny e $host --force >/dev/null 2>&1"
	is "what evict finds after another deny" "$(remote "errno_of store $C/exports/e/evict $host")" ENOENT
	here unmap e
	# With a map, and without one.
	there export allow e "$host"
	here map "$FARBLK_SERVER/e"
	must remote "$FARBLK --dry-run export deny e $host --force | bash -e"
	is "what evict finds after the shell that denies" "$(remote "errno_of store $C/exports/e/evict $host")" ENOENT
	here unmap e
	there export allow e "$host"
	must remote "$FARBLK --dry-run export deny e $host | bash -e 2>/dev/null"
	[ -z "$(remote "ls $C/exports/e/hosts")" ] || bad "the host has an entry still"
}

# An export is disabled and enabled; a host is evicted, and may come back.
export_switch() {
	local host
	host=$(show "$C/host_name")
	must serve e 8M
	here map "$FARBLK_SERVER/e"
	is "disable of an export in use" "$(remote "$FARBLK export disable e 2>/dev/null; echo \$?")" 4
	is "evict of a host with a map" "$(remote "$FARBLK export evict e $host 2>/dev/null; echo \$?")" 4
	there export evict e "$host" --force
	wait_for 30 list_has '.state == "evicted"' || bad "after it was evicted: $("$FARBLK" -j list)"
	logs "map e: evicted, I/O fails: ."
	server_logs "export e: lost host $host: the administrator has ended its session$"
	here remap e --yes
	here unmap e
	is "evict of a host without a map" "$(remote "$FARBLK export evict e $host 2>/dev/null; echo \$?")" 3
	there export disable e
	is "the state" "$(remote "cat $C/exports/e/state")" disabled
	is "exit code of another export of that name" "$(remote "$FARBLK export create e --ram 4M 2>/dev/null; echo \$?")" 1
	is "exit code of another export with its UUID" "$(remote "$FARBLK export create f --ram 4M --uuid \$(cat $C/exports/e/uuid) 2>/dev/null; echo \$?")" 1
	is "exports" "$(remote "ls $C/exports")" e
	exits 5 "$FARBLK" map "$FARBLK_SERVER/e"
	grep -q F0210 /run/stderr || bad "map of a disabled export: $(cat /run/stderr)"
	there export enable e
	here map "$FARBLK_SERVER/e"
	here unmap e
}

# goes MAP LINE: MAP waits under I/O when LINE takes the device of its export away, and says why.
goes() {
	local dev
	dev=/dev/$(show "$C/maps/$1/device")
	random /run/data 1
	rm -f /run/stop
	while [ ! -e /run/stop ]; do direct_write /run/data "$dev" || exit; done 2>/run/writes &
	at_exit "touch /run/stop; $FARBLK unmap $1 --force >/dev/null 2>&1; wait; rm /run/stop"
	must direct_write /run/data "$dev"
	must remote "$2"
	wait_for 30 list_has '.last_error.errno == "ENOMEDIUM"' || bad "the map: $("$FARBLK" -j list)"
	is "the disk's size" "$(blockdev --getsize64 "$dev")" $((8 << 20))
	[ -d /proc/$! ] || bad "a write did not wait: $(cat /run/writes)"
}

# The device of an export goes away: both sides say why, and the other exports do not suffer.
unavailable() {
	local power=/sys/kernel/config/nullb/fbn/power
	needs_module null_blk
	there port add --addr "$FARBLK_SERVER"
	there export create r --ram 8M --allow-any-host
	back "null_disk fbn 8"
	there export create g --device "$BACK" --allow-any-host
	here map "$FARBLK_SERVER/g" --no-path-timeout forever --reconnect-max 1s
	goes g "store $power 0"
	exits 11 "$FARBLK" doctor "$FARBLK_SERVER/g"
	grep -q 'map g is .*: the export is unavailable: its device was removed' /run/stdout && grep -q "$FARBLK_SERVER/g is unavailable" /run/stdout || bad "doctor: $(cat /run/stdout)"
	is "what the server's doctor says" "$(remote "$FARBLK doctor 2>/dev/null | grep -o 'export g is .*'")" "export g is unavailable: its device was removed"
	here discover "$FARBLK_SERVER"
	is "what discover says" "$(awk 'NR > 1 { print $1, $3, $4 }' /run/stdout | xargs)" "r 8.0 MiB g unavailable two-sided"
	here ping "$FARBLK_SERVER" --count 1
	here unmap g --force
	wait $! && bad "a write that waited was done"
	# A map that was not there before leaves nothing at the server.
	must remote "store $power 1"
	there export create g --device "$BACK" --allow-any-host
	must remote "store $power 0"
	exits 5 "$FARBLK" map "$FARBLK_SERVER/g"
	grep -q F0224 /run/stderr || bad "map of an export without a device: $(cat /run/stderr)"
	there export rm g
}

# A device that is plugged in again: what has waited for it is done.
unplugged() {
	local delete
	needs_module scsi_debug
	there port add --addr "$FARBLK_SERVER"
	back "scsi_disk 8"
	delete=$(remote "readlink -f /sys/class/block/${BACK##*/}/device")/delete
	there export create g --device "$BACK" --allow-any-host
	here map "$FARBLK_SERVER/g" --no-path-timeout forever --reconnect-max 1s
	goes g "store $delete 1"
	must remote "store \$(echo /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/scsi_host/host*/scan) '- - -'"
	# It has another name, as the export has it open still.
	back "wait_for 30 scsi_name >/dev/null && scsi_name"
	must remote "cd $C/exports/g && store enable 0 && store device_path $BACK && store enable 1"
	wait_for 30 list_has '.state == "live"' || bad "with its device again: $("$FARBLK" -j list)"
	touch /run/stop
	wait $! || bad "a write that waited: $(cat /run/writes)"
	must direct_read "/dev/$(show "$C/maps/g/device")" /run/back count=1
	cmp /run/data /run/back || wrong "another content came back"
	here unmap g
}

# A device that has no room for a while, and whose map, of two paths, fails: no read finds the end
# of the disk.
emptied() {
	local dev
	needs_module loop
	there port add --addr "$FARBLK_SERVER" first
	there port add --addr "$FARBLK_SERVER:7421" second
	back "loop_disk \$(loop_file f 8)"
	there export create g --device "$BACK" --allow-any-host
	here map "$FARBLK_SERVER/g" --no-path-timeout 0 --reconnect-max 1s
	dev=$(cat /run/stdout)
	here path add g "$FARBLK_SERVER:7421"
	must remote "truncate -s 0 /run/loop/f && losetup --set-capacity $BACK"
	wait_for 30 list_has '.state == "failed"' || bad "the map: $("$FARBLK" -j list)"
	ends "a read" ENOLINK direct_read "$dev" /dev/null count=1
	is "the state" "$(remote "cat $C/exports/g/state")" unavailable
	must remote "truncate -s 8M /run/loop/f && losetup --set-capacity $BACK"
	wait_for 30 list_has '.state == "live" and .paths_live == 2' || bad "with room again: $("$FARBLK" -j list)"
	must direct_read "$dev" /dev/null
	is "the state" "$(remote "cat $C/exports/g/state")" online
	here unmap g
}

# It is shown who has reserved an export, and the administrator takes that away.
unreserved() {
	local dev
	needs python3
	needs_module null_blk
	back "null_disk fbn 8"
	must serve_block e "$BACK"
	here map "$FARBLK_SERVER/e"
	dev=$(cat /run/stdout)
	is "register and reserve" "$(python3 "$HERE/pr.py" "$dev" register 0 10) $(python3 "$HERE/pr.py" "$dev" reserve 10 2)" "OK OK"
	is "who has registered" "$(remote "$FARBLK export show e" | tail -n 1 | xargs)" "$(show "$C/host_name") 0xa exclusive-access"
	is "unreserve of what is reserved" "$(remote "$FARBLK export unreserve e 2>/dev/null; echo \$?")" 4
	there export unreserve e --force
	is "keys after that" "$(python3 "$HERE/pr.py" "$dev" keys)" 2
	there export unreserve e
	here unmap e
}

scenario file_export "a file of the server is a disk, grows, and its loop device goes with the export"
scenario image_blocks "an image of a disk with other blocks than the disk under it"
scenario killed_export "an export create or rm that was killed can be run again"
scenario bad_devices "what cannot be exported is refused with its reason"
scenario denied "export deny gives an export for any host to others"
scenario denied_entry "export deny waits until nothing of the host is left"
scenario export_switch "an export is disabled and enabled, and a host is evicted"
scenario unavailable "the device of an export goes away: maps wait, and both sides say why"
scenario unplugged "a device is unplugged under I/O, and plugged in again"
scenario emptied "the device of an export has no room for a while: maps fail, and come back"
scenario unreserved "persistent reservations are shown and removed"
run_scenarios
