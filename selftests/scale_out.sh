#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# The recipes of Documentation/scale-out.rst: arrays and volumes over two servers, each of which
# dies and comes back. Lines given to a, b and c are commands of that page, as they stand there.
#
# Long: it has each recipe of that page, and they share the two servers.
. "$(dirname "$0")/lib.sh"
. "$HERE/recovery.sh"
TOLERATE=1
# How the test gets from the hosts and sizes of the page to its own.
declare -A KEPT DEAD
# Seconds for which the I/O of a leg waits: guests on a busy host may stand still for some, and then
# no server has died. A server keeps the place of its map for LEASE.
WAITS=$((10 * ${FARBLK_PATIENCE:-1}))
LEASE=$((WAITS + 10))

# scaled LINE: for these guests. The bitmap of an array this small would have a single bit.
scaled() {
	local line=$1
	line=${line//10.0.0.1/$(address server)}
	line=${line//10.0.1.1/$(address server 1)}
	line=${line//10.0.0.3/$(address second)}
	line=${line//node-b/$(show "$C/host_name")}
	line=${line//--no-path-timeout 5s/--no-path-timeout ${WAITS}s}
	line=${line//--ram 4G/--ram 16M}
	line=${line//--bitmap=internal/--bitmap=internal --bitmap-chunk=64K}
	# It asks before it overwrites a disk.
	line=${line//integritysetup format/integritysetup format --batch-mode}
	printf '%s\n' "$line"
}
# b LINE: on the client; OUT is what it prints. tries LINE: the same, and its exit code. refuses
# LINE: the same of a line that has to fail.
tries() {
	local rc=0
	OUT=$(eval "$(scaled "$1")" </dev/null 2>&1) || rc=$?
	note "b# $1"
	[ -z "$OUT" ] || note "$OUT"
	names
	return $rc
}
b() { tries "$1" || die "exit code $? of: $1"; }
refuses() { ! tries "$1" || bad "this did not fail: $1"; }
# a LINE, c LINE: on the first and the second server. What is saved there outlives the guest, whose
# root file system does not.
a() { on server "$1"; }
c() { on second "$1"; }
on() {
	local SERVER=$1
	note "$1# $2"
	OUT=$(remote "$(scaled "$2") 2>&1") || die "exit code $? of: $2: $OUT"
	[ "$2" != 'farblk config save' ] || KEPT[$1]=$(remote 'tar -C /etc -cz farblk | base64 -w 0')
}
# names: what the rules of udev do.
names() {
	local m device
	mkdir -p /dev/farblk/by-name
	rm -f /dev/farblk/by-name/*
	for m in "$C"/maps/*/; do
		device=$([ ! -d "$m" ] || show "$m/device") && [ -z "$device" ] || ln -s "/dev/$device" "/dev/farblk/by-name/$(basename "$m")"
	done
}

# --- the servers ----------------------------------------------------------------------------------

# begin [cached]: two servers with two disks each. Cached ones lie behind the page cache of the
# server, which completes writes that it loses with its power.
begin() {
	local server disk='$DISK'
	agent_only
	[[ ,$ROLES, == *,second,* ]] || skip "there is no second server"
	needs farblk stamp jq mdadm
	[ -z "${1:-}" ] || disk='$(modprobe loop; losetup --find --show $DISK)'
	DISKS="disk=$disk && dm_disk X \"0 32768 linear \$disk 0\" && dm_disk Y \"0 32768 linear \$disk 32768\" &&
		mkdir -p /dev/disk/by-id && ln -sf ../../dm-0 /dev/disk/by-id/nvme-X && ln -sf ../../dm-1 /dev/disk/by-id/nvme-Y"
	for server in server second; do
		SERVER=$server must remote "tolerant on; loaded || load_module; rm -rf /etc/farblk
			blkdiscard --zeroout --length 32M \$DISK && $DISKS" >/dev/null
	done
	cp -n /etc/mdadm/mdadm.conf /run/mdadm.conf
	echo "CREATE bbl=no" >>/etc/mdadm/mdadm.conf
	at_exit "end"
	a 'farblk port add --addr 10.0.0.1'
	c 'farblk port add --addr 10.0.0.3'
}
# end: what clean does not know of, and a server that the scenario left dead.
end() {
	local md server text
	{
		net pass
		touch /run/stamp.stop
		[ -z "${STAMP:-}" ] || wait_for 20 stamp_ended
		for md in /sys/block/md*/; do [ ! -d "$md" ] || mdadm --stop "/dev/$(basename "$md")"; done
		[ ! -e /dev/mapper/wide-data ] || vgchange --activate n wide
		# These may lie on a map that fails.
		dmsetup remove --force one-checked two-checked
		clean
		cp /run/mdadm.conf /etc/mdadm/mdadm.conf
		rm -rf /dev/farblk /etc/farblk
		for server in "${!DEAD[@]}"; do SERVER=$server server_on; done
		remote 'clean; rm -rf /etc/farblk; losetup --detach-all'
		SERVER=second remote 'clean; rm -rf /etc/farblk; losetup --detach-all; remove_module; ! kmemleak_is_on || sleep 6'
	} >/dev/null 2>&1
	if text=$(SERVER=second remote leaks); then
		wrong "not freed by the second server:"$'\n'"$text"
		exit 1
	fi
	SERVER=second remote lockdep_is_on || { wrong "the second server's lockdep is off"; exit 1; }
}
disks() {
	a 'farblk export create one --device /dev/disk/by-id/nvme-X --allow node-b'
	a 'farblk config save'
	c 'farblk export create two --device /dev/disk/by-id/nvme-X --allow node-b'
	c 'farblk config save'
}
legs() {
	b 'farblk map 10.0.0.1/one --no-path-timeout 5s --persist'
	b 'farblk map 10.0.0.3/two --no-path-timeout 5s --persist'
}

# dies SERVER. returns SERVER: boots, and restores its exports, as its unit does.
dies() { note "$1 dies"; DEAD[$1]=1; SERVER=$1 must server_off; }
boots() { SERVER=$1 must server_on; unset "DEAD[$1]"; }
restores() {
	SERVER=$1 must remote "$DISKS && base64 -d <<<'${KEPT[$1]}' | tar -C /etc -xz && farblk config restore" >/dev/null
	note "$1 is back"
}
returns() { boots "$1"; restores "$1"; }
# settled MAP: it knows what has become of its export.
state_of() { show "$C/maps/$1/state"; }
settled() {
	wait_for "$AGAIN" has_settled "$1" || die "the map is $(state_of "$1")"
	note "$1: $(state_of "$1") $(show "$C/maps/$1/last_error")"
	b 'farblk list'
}
has_settled() { [[ $(state_of "$1") =~ ^(live|evicted|stale)$ ]]; }
# finish and resumes show the states of map m; here there is none.
states() {
	local m
	for m in "$C"/maps/*/; do printf '%s %s %s; ' "$(basename "$m")" "$(show "$m/state")" "$(show "$m/last_error")"; done
	[ ! -e /proc/mdstat ] || cat /proc/mdstat
}

# --- arrays ---------------------------------------------------------------------------------------

device_of() { echo "/dev/$(show "$C/maps/$1/device")"; }
# array NAME: DEV, and md reads and writes its attributes.
array() { DEV=/dev/md/$1 MD=/sys/block/$(basename "$(readlink -f "/dev/md/$1")")/md; [ -d "$MD" ] || die "no array $1"; }
md() { show "$MD/$1"; }
lacks() { [ "$(md degraded)" = "$1" ]; }
whole() { [ "$(md sync_action)" = idle ] && lacks 0; }
is_whole() {
	tries 'mdadm --wait /dev/md/mirror'
	wait_for 120 whole || die "not whole: $(cat /proc/mdstat)"
}
idle() { [ "$(md sync_action)" = idle ]; }
checked() { [ "$(md last_sync_action)" = check ] && idle; }
# check: DIFFER is how many sectors differ between the legs. equal: none.
check() {
	b 'mdadm --action=check /dev/md/mirror'
	tries 'mdadm --wait /dev/md/mirror'
	wait_for 120 checked || die "no check: $(cat /proc/mdstat)"
	b 'cat /sys/block/$(basename $(readlink -f /dev/md/mirror))/md/mismatch_cnt'
	DIFFER=$OUT
}
equal() { check; is "sectors that differ" "$DIFFER" 0; }
# no_errors: stamp ends, and nobody noticed.
no_errors() {
	stamp_off 60
	[ "$(stamped read_errors)$(stamped write_errors)" = 00 ] || bad "I/O errors: $(stamped last_error)"
	note "longest stall: $(stamped stall_ms) ms"
}
# without SERVER NUMBER: it dies, so many legs fail, and I/O goes on.
without() {
	dies "$1"
	wait_for 120 lacks "$2" || die "md does not notice: $(cat /proc/mdstat)"
	resumes 10
}

mirror_of() {
	b "mdadm --create /dev/md/mirror --metadata=1.2 --level=1 --raid-devices=2 --bitmap=internal $1 $2"
	array mirror
	is_whole
}
mirror_of_maps() {
	b 'mdadm --create /dev/md/mirror --metadata=1.2 --level=1 --raid-devices=2 --bitmap=internal /dev/farblk/by-name/one /dev/farblk/by-name/two'
	! mdadm --examine /dev/farblk/by-name/one | grep "Bad Block Log" || bad "the leg has a log of bad blocks"
	array mirror
	is_whole
}
# again: the leg of the first server is mapped anew.
again() {
	settled one
	b 'mdadm /dev/md/mirror --remove /dev/farblk/by-name/one'
	b 'farblk unmap one && farblk config restore --map=one'
}
re_add() {
	b 'mdadm /dev/md/mirror --re-add /dev/farblk/by-name/one'
	is_whole
}
rebuild() {
	b 'mdadm --zero-superblock /dev/farblk/by-name/one'
	b 'mdadm /dev/md/mirror --add /dev/farblk/by-name/one'
	is_whole
}

mirror() {
	needs_own_module raid1
	begin
	disks
	legs
	mirror_of_maps
	b 'mkfs.ext4 /dev/md/mirror'
	stamp_on --size $USED
	without server 1
	returns server
	again
	re_add
	# What the first one has now is all there is. It is away for longer than its lease.
	without second 1
	sleep $LEASE
	returns second
	settled two
	b 'mdadm /dev/md/mirror --remove /dev/farblk/by-name/two'
	b 'farblk unmap two && farblk config restore --map=two'
	b 'mdadm /dev/md/mirror --re-add /dev/farblk/by-name/two'
	is_whole
	no_errors
	equal
}

# The network of the client breaks, and both legs fail.
cut_off() {
	local leg device fault
	needs_own_module raid1
	begin
	disks
	legs
	mirror_of_maps
	stamp_on --size $USED
	must net cut 0
	wait_for 60 lacks 1 || die "md does not notice: $(cat /proc/mdstat)"
	wait_for 60 no_write || bad "the last leg does not fail"
	must net pass 0
	settled one
	settled two
	touch /run/stamp.stop
	wait_for 60 stamp_ended || die "stamp does not end"
	# md completes writes that only the leg has which it gives up.
	note "blocks without a write that was complete, or that a read had returned: $(stamped lost), $(stamped reverted)"
	for fault in ghost alien torn; do same_data "$fault blocks" "$(stamped $fault)" 0; done
	is "hung blocks" "$(stamped hung)" 0
	b 'mdadm --stop /dev/md/mirror'
	b 'mdadm --assemble /dev/md/mirror /dev/farblk/by-name/one /dev/farblk/by-name/two'
	array mirror
	for leg in one two; do
		device=$(device_of $leg)
		[ -e "$MD/dev-${device#/dev/}" ] || b "mdadm /dev/md/mirror --re-add /dev/farblk/by-name/$leg"
	done
	# An array that was just assembled is read-only until the first write, and is not made
	# whole.
	must direct_write /dev/zero "$DEV" bs=4k count=1 seek=3000
	is_whole
	must direct_read "$DEV" /dev/null
	equal
}
no_write() { ! direct_write /dev/zero "$DEV" bs=4k count=1 seek=3000; }

# block N: writes chunk N of the array, and keeps what it wrote. has N DEVICE OFFSET: that
# is there.
CHUNK=65536
block() {
	head -c $CHUNK /dev/urandom >"/run/chunk$1"
	must direct_write "/run/chunk$1" "$DEV" bs=$CHUNK seek="$1"
}
has() { cmp -s <(dd if="$2" iflag=direct bs=$CHUNK skip="$1" count=1 status=none) "/run/chunk$1" || wrong "chunk $1 is not what was written last"; }

# assembled LINE: the array that it makes has what was written last.
assembled() { b "$1"; array mirror; has 3 "$DEV"; }
boot() {
	needs_own_module raid1
	begin
	disks
	legs
	mirror_of_maps
	block 3
	dies server
	block 3
	wait_for 60 lacks 1 || die "md does not notice: $(cat /proc/mdstat)"
	b 'mdadm --stop /dev/md/mirror'
	returns server
	settled one
	b 'farblk unmap one && farblk config restore --map=one'
	note "of two legs, the older one"
	refuses 'mdadm --assemble /dev/md/mirror /dev/farblk/by-name/one'
	[[ $OUT == *"need all 2 to start it"* ]] || bad "mdadm does not say why"
	assembled 'mdadm --assemble /dev/md/mirror /dev/farblk/by-name/one /dev/farblk/by-name/two'
	is "legs that are missing" "$(md degraded)" 1
	b 'mdadm --stop /dev/md/mirror'
	assembled 'mdadm --assemble /dev/md/mirror /dev/farblk/by-name/two'
	re_add
	has 3 "$DEV"
	equal
	note "what udev would do"
	b 'mdadm --detail --brief /dev/md/mirror'
	[[ $OUT =~ UUID=([0-9a-f:]+) ]] || die "no UUID"
	b 'mdadm --stop /dev/md/mirror'
	echo "ARRAY <ignore> UUID=${BASH_REMATCH[1]}" >>/etc/mdadm/mdadm.conf
	refuses 'mdadm --incremental /dev/farblk/by-name/one'
	refuses 'mdadm --incremental /dev/farblk/by-name/two'
	assembled 'mdadm --assemble /dev/md/mirror /dev/farblk/by-name/one /dev/farblk/by-name/two'
	is "legs that are missing" "$(md degraded)" 0
	b 'mdadm --stop /dev/md/mirror'
	note "one of two equal legs"
	refuses 'mdadm --assemble /dev/md/mirror /dev/farblk/by-name/two'
	assembled 'mdadm --assemble --run /dev/md/mirror /dev/farblk/by-name/two'
	block 3
	re_add
	has 3 "$DEV"
	equal
}

# forget: chunk 40 is complete on both legs when the first server dies, and the leg has not flushed
# it. forgotten: DIFFER is what a re-add left different, which is why the page forbids that.
bits() { mdadm --examine-bitmap "$LEG_TWO" | sed -n 's/.* \([0-9]*\) dirty.*/\1/p'; }
one_bit() { [ "$(bits)" = 1 ]; }
forget() {
	# Else md flushes when it marks the array as clean.
	must store "$MD/safe_mode_delay" 0
	block 100
	block 40
	dies server
	# This is how md notices.
	block 100
	wait_for 60 lacks 1 || die "md does not notice: $(cat /proc/mdstat)"
	wait_for 60 one_bit || note "$(bits) bits are set"
}
forgotten() {
	check
	note "after a re-add $DIFFER sectors differ"
}

volatile() {
	needs_own_module raid1
	begin cached
	disks
	legs
	is write_cache "$(queue_file "$(device_of one)" write_cache)" "write back"
	mirror_of_maps
	LEG_TWO=/dev/farblk/by-name/two
	forget
	returns server
	again
	re_add
	forgotten
	[ "$DIFFER" != 0 ] || bad "the leg has forgotten nothing"
	b 'mdadm /dev/md/mirror --fail /dev/farblk/by-name/one'
	b 'mdadm /dev/md/mirror --remove /dev/farblk/by-name/one'
	rebuild
	equal
	has 40 "$DEV"
	has 100 "$DEV"
}

# The server is back before the leg has failed.
lost() {
	needs_own_module raid1
	begin cached
	disks
	b 'farblk map 10.0.0.1/one --no-path-timeout 10m --persist'
	b 'farblk map 10.0.0.3/two --no-path-timeout 10m --persist'
	mirror_of_maps
	must store "$MD/safe_mode_delay" 0
	block 40
	dies server
	returns server
	wait_for "$AGAIN" has_settled one
	note "a flush of the array: $(errno_of sync "$DEV"); legs that are missing: $(md degraded)"
	[[ $(show "$C/maps/one/last_error") == *"writes were lost with the server's cache"* ]] || bad "one: $(state_of one) $(show "$C/maps/one/last_error")"
	# md has to write its bitmap.
	block 100
	block 101
	wait_for 60 lacks 1 || note "the leg stays"
	note "one: $(state_of one) $(show "$C/maps/one/last_error")"
	b 'farblk show one'
	lacks 1 || tries 'mdadm /dev/md/mirror --fail /dev/farblk/by-name/one'
	again
	rebuild
	equal
	has 40 "$DEV"
}

ram() {
	needs_own_module raid1
	begin
	a 'farblk export create one --ram 4G --allow node-b'
	a 'farblk config save'
	c 'farblk export create two --ram 4G --allow node-b'
	c 'farblk config save'
	legs
	mirror_of_maps
	stamp_on --size $USED
	without server 1
	returns server
	settled one
	is "the state of the map" "$(state_of one)" stale
	again
	refuses 'mdadm /dev/md/mirror --re-add /dev/farblk/by-name/one'
	rebuild
	without second 1
	no_errors
}

raid10() {
	needs_own_module raid10
	begin
	disks
	a 'farblk export create three --device /dev/disk/by-id/nvme-Y --allow node-b'
	a 'farblk config save'
	c 'farblk export create four --device /dev/disk/by-id/nvme-Y --allow node-b'
	c 'farblk config save'
	legs
	b 'farblk map 10.0.0.1/three --no-path-timeout 5s --persist'
	b 'farblk map 10.0.0.3/four --no-path-timeout 5s --persist'
	b 'mdadm --create /dev/md/big --metadata=1.2 --level=10 --raid-devices=4 --bitmap=internal /dev/farblk/by-name/one /dev/farblk/by-name/two /dev/farblk/by-name/three /dev/farblk/by-name/four'
	array big
	wait_for 120 whole || die "not whole: $(cat /proc/mdstat)"
	stamp_on --size $USED
	without server 2
	returns server
	for leg in one three; do
		settled $leg
		b "mdadm /dev/md/big --remove /dev/farblk/by-name/$leg"
		b "farblk unmap $leg && farblk config restore --map=$leg"
		b "mdadm /dev/md/big --re-add /dev/farblk/by-name/$leg"
	done
	wait_for 120 whole || die "not whole: $(cat /proc/mdstat)"
	without second 2
	returns second
	for leg in two four; do
		settled $leg
		b "mdadm /dev/md/big --remove /dev/farblk/by-name/$leg"
		b "farblk unmap $leg && farblk config restore --map=$leg"
		b "mdadm /dev/md/big --re-add /dev/farblk/by-name/$leg"
	done
	wait_for 120 whole || die "not whole: $(cat /proc/mdstat)"
	no_errors
	b 'mdadm --action=check /dev/md/big'
	wait_for 120 checked || die "no check: $(cat /proc/mdstat)"
	is "sectors that differ" "$(md mismatch_cnt)" 0
}

# --- checksums ------------------------------------------------------------------------------------

failures() { integritysetup status one-checked | awk '$1 == "failures:" {print $2}'; }
integrity() {
	needs_own_module raid1 dm_integrity
	needs integritysetup
	begin
	disks
	legs
	b 'integritysetup format --integrity-bitmap-mode --sector-size 4096 /dev/farblk/by-name/one'
	b 'integritysetup format --integrity-bitmap-mode --sector-size 4096 /dev/farblk/by-name/two'
	b 'integritysetup open --integrity-bitmap-mode /dev/farblk/by-name/one one-checked'
	b 'integritysetup open --integrity-bitmap-mode /dev/farblk/by-name/two two-checked'
	b 'mdadm --create /dev/md/mirror --metadata=1.2 --level=1 --raid-devices=2 --bitmap=internal /dev/mapper/one-checked /dev/mapper/two-checked'
	array mirror
	is_whole
	stamp_on --size $USED
	without server 1
	returns server
	settled one
	b 'mdadm /dev/md/mirror --remove /dev/mapper/one-checked'
	b 'integritysetup close one-checked'
	b 'farblk unmap one && farblk config restore --map=one'
	b 'integritysetup open --integrity-bitmap-mode /dev/farblk/by-name/one one-checked'
	b 'mdadm /dev/md/mirror --re-add /dev/mapper/one-checked'
	is_whole
	no_errors
	equal
	note "the disk of the first server changes two blocks"
	must sha256sum "$DEV" >/run/sum
	must remote "head -c 8K /dev/urandom | dd of=\$DISK bs=4K seek=$((10 << 8)) iflag=fullblock oflag=direct conv=notrunc status=none"
	is "blocks that were wrong" "$(failures)" 0
	check
	b 'integritysetup status one-checked'
	[ "$(failures)" != 0 ] || bad "no wrong block was found"
	is "legs that are missing" "$(md degraded)" 0
	must sha256sum --quiet --check /run/sum
	must direct_read /dev/mapper/one-checked /dev/null
	equal
}

journal() {
	needs_own_module raid1 dm_integrity
	needs integritysetup
	begin
	disks
	legs
	for leg in one two; do
		b "integritysetup format --sector-size 4096 /dev/farblk/by-name/$leg"
		b "integritysetup open /dev/farblk/by-name/$leg $leg-checked"
	done
	mirror_of /dev/mapper/one-checked /dev/mapper/two-checked
	LEG_TWO=/dev/mapper/two-checked
	forget
	returns server
	settled one
	b 'mdadm /dev/md/mirror --remove /dev/mapper/one-checked'
	b 'integritysetup close one-checked'
	b 'farblk unmap one && farblk config restore --map=one'
	b 'integritysetup open /dev/farblk/by-name/one one-checked'
	b 'mdadm /dev/md/mirror --re-add /dev/mapper/one-checked'
	is_whole
	# The journal is written every 10 s: if that was just now, nothing is missing.
	forgotten
	b 'mdadm /dev/md/mirror --fail /dev/mapper/one-checked'
	b 'mdadm /dev/md/mirror --remove /dev/mapper/one-checked'
	b 'mdadm --zero-superblock /dev/mapper/one-checked'
	b 'mdadm /dev/md/mirror --add /dev/mapper/one-checked'
	is_whole
	equal
	has 40 "$DEV"
	has 100 "$DEV"
}

# --- stripes --------------------------------------------------------------------------------------

stripes() {
	needs lvm
	needs_own_module dm_mod
	begin
	disks
	# LVM without a udev.
	export LVM_SYSTEM_DIR=/run/lvm.conf LVM_SUPPRESS_FD_WARNINGS=1
	mkdir -p $LVM_SYSTEM_DIR
	cat >$LVM_SYSTEM_DIR/lvm.conf <<-'CONF'
		devices { use_devicesfile=0 filter=["a|^/dev/farblk|","r|.*|"] dir="/dev" scan="/dev" obtain_device_list_from_udev=0 external_device_info_source="none" }
		activation { udev_sync=0 udev_rules=0 monitoring=0 } global { use_lvmlockd=0 locking_type=1 event_activation=0 }
		allocation { wipe_signatures_when_zeroing_new_lvs=0 }
	CONF
	b 'farblk map 10.0.0.1/one --no-path-timeout forever --persist'
	b 'farblk map 10.0.0.3/two --no-path-timeout forever --persist'
	b 'pvcreate /dev/farblk/by-name/one /dev/farblk/by-name/two'
	b 'vgcreate wide /dev/farblk/by-name/one /dev/farblk/by-name/two'
	b 'lvcreate --stripes 2 --stripesize 64k --extents 100%FREE --name data wide'
	b 'mkfs.ext4 /dev/wide/data'
	DEV=/dev/wide/data
	stamp_on --size $USED
	dies second
	sleep 5
	returns second
	resumes "$AGAIN"
	no_errors
	note "with a limited time"
	b 'vgchange --activate n wide'
	b 'farblk unmap two && farblk map 10.0.0.3/two --no-path-timeout 1s'
	b 'vgchange --activate y wide'
	stamp_on --size $USED
	dies second
	wait_for 60 wide_fails || bad "no I/O fails"
	returns second
	settled two
	touch /run/stamp.stop
	wait_for 60 stamp_ended || die "stamp does not end"
	unharmed
	b 'vgchange --activate n wide'
	b 'farblk unmap two && farblk config restore --map=two'
	b 'vgchange --activate y wide'
	must direct_read "$DEV" /dev/null
	b 'vgchange --activate n wide'
}
wide_fails() { ! direct_read "$DEV" /dev/null; }

# --- hosts and paths ------------------------------------------------------------------------------

hosts() {
	begin
	a 'farblk export create one --device /dev/disk/by-id/nvme-X --allow node-b --allow second'
	b 'farblk map 10.0.0.1/one --no-path-timeout 5s --persist'
	OUT=$(SERVER=second remote "farblk map $(address server)/one 2>&1") && bad "two hosts have an export"
	note "$OUT"
	[[ $OUT == *F0209* ]] || bad "it is refused for another reason"
	b 'farblk unmap one'
	SERVER=second must remote "farblk map $(address server)/one && farblk unmap one" >/dev/null
}

AT_ONCE=16
# write_all: each of some blocks once more, at the same time.
write_all() { stamp "$DEV" --blocks $AT_ONCE --io 4 --jobs $AT_ONCE --state /run/stamp.state --fill-only --stall 700 >/run/stamp.out 2>&1; }
# late: the network keeps writes until their blocks were written again, and once more, over the
# other network, and then delivers them. Its exit code says whether what was written last is there.
late() {
	rm -f /run/stamp.state
	write_all || die "$(cat /run/stamp.out)"
	must net hold 0 client server
	must net cut 0 server client
	write_all || die "no failover: $(cat /run/stamp.out)"
	[ "$(stamped slow)" != 0 ] || bad "no write was held"
	note "$(stamped slow) writes had to go another way"
	write_all || die "$(cat /run/stamp.out)"
	must net release 0 client server
	sleep 0.3
	must net pass 0
	stamp "$DEV" --blocks $AT_ONCE --io 4 --state /run/stamp.state --verify-only >/run/stamp.out 2>&1
}
both_live() { [ "$("$FARBLK" -j list | jq '[.maps[].paths[] | select(.state == "live")] | length')" = 2 ]; }
FARBLK=farblk

paths() {
	begin
	a 'farblk port add --addr 10.0.1.1'
	a 'farblk config save'
	disks
	b 'farblk map 10.0.0.1/one --no-path-timeout 5s --persist'
	b 'farblk path add one 10.0.1.1'
	b 'farblk map 10.0.0.1/one --no-path-timeout 5s --persist'
	wait_for "$AGAIN" both_live || die "a path is missing: $(states)"
	DEV=$(device_of one)
	for round in 1 2 3; do
		late || bad "round $round: $(cat /run/stamp.out)"
		wait_for "$AGAIN" both_live || die "a path is missing: $(states)"
	done
	b 'farblk unmap one && farblk config restore --map=one'
	wait_for "$AGAIN" both_live || bad "a path was not kept: $(states)"
}

# Why not so.
multipath() {
	local one two round older=
	needs_own_module dm_multipath dm_round_robin
	begin
	a 'farblk port add --addr 10.0.1.1'
	a 'farblk export create one --device /dev/disk/by-id/nvme-X --allow node-b --max-clients 2'
	b 'farblk map 10.0.0.1/one --no-path-timeout 0 --heartbeat 3s --name first'
	b 'farblk map 10.0.1.1/one --no-path-timeout 0 --heartbeat 3s --name other'
	one=$(show "/sys/class/block/$(show "$C/maps/first/device")/dev")
	two=$(show "/sys/class/block/$(show "$C/maps/other/device")/dev")
	DEV=$(dm_disk both "0 $(sectors "$(device_of first)") multipath 1 queue_if_no_path 0 2 1 round-robin 0 1 1 $one 1 round-robin 0 1 1 $two 1") || die "no dm-multipath"
	for round in 1 2 3; do
		late || { older=$(tail -n 1 /run/stamp.out); note "round $round: $older"; break; }
		wait_for "$AGAIN" both_live || die "a map is away: $(states)"
		must dmsetup message farblk-both 0 "reinstate_path $one"
		must dmsetup message farblk-both 0 "switch_group 1"
	done
	[ -n "$older" ] || bad "no older write has landed in $round rounds"
	must dmsetup remove farblk-both
}

scenario mirror "RAID1: either server dies and comes back under I/O"
scenario cut_off "RAID1: the client has no network, and all legs fail"
scenario boot "RAID1: which leg starts the array"
scenario volatile "RAID1: a leg that has lost its cache is rebuilt"
scenario lost "RAID1: the same, back before the leg has failed"
scenario ram "RAID1 of RAM: a leg is rebuilt"
scenario raid10 "RAID10 of two exports of each server"
scenario integrity "dm-integrity: a server dies, a disk changes blocks"
scenario journal "dm-integrity with a journal: a leg is rebuilt"
scenario stripes "LVM stripes: I/O waits, or fails"
scenario hosts "a second host does not get the export"
scenario paths "two paths of one map: no older write lands"
scenario multipath "dm-multipath over two maps: one does"
run_scenarios
