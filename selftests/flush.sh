#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What was flushed, or written with FUA, survives the loss of the server's power; and nobody flushes
# who was not told to.
. "$(dirname "$0")/lib.sh"

# block N CHAR: 4 KiB of that character at block N of the disk; a third word is a flag for dd.
block() { head -c 4096 /dev/zero | tr '\0' "$2" | dd of="$DEV" bs=4096 seek="$1" count=1 iflag=fullblock conv=notrunc status=none oflag="direct${3:+,$3}" || die "a write fails"; }
# there N: the first character of that block on the server.
there() { remote "dd if=$BACK iflag=direct bs=4096 skip=$1 count=1 status=none | tr '\0' . | head -c 1"; }
flushes() { remote "io $BACK flushes"; }

# A null_blk that loses its cache when it is turned off, as power does.
survives() {
	local before
	needs_module null_blk
	disk_of "null_disk fbn 16 blocksize=4096 cache_size=4 $1"
	is write_cache "$(queue_file "$DEV" write_cache)" "write back"
	block 1 a
	must sync "$DEV"
	block 2 b dsync
	before=$(flushes)
	block 3 c
	is "flushes without being told to" $(($(flushes) - before)) 0
	must unmap m
	# Before the export is disabled, as that flushes.
	must remote "store /sys/kernel/config/nullb/fbn/power 0; is_local || store $C/exports/e/enable 0; store /sys/kernel/config/nullb/fbn/power 1"
	is "what was flushed" "$(there 1)" a
	is "what was written with O_DSYNC" "$(there 2)" b
	is "what was not flushed" "$(there 3)" .
	[ "$(there 3)" = . ] || note "the device lost nothing, so this proves nothing"
}
survives_fua() { survives fua=1; }
survives_flush() { survives fua=0; }

# A device without a cache is never flushed.
write_through() {
	local before
	needs_module null_blk
	disk_of "null_disk fbn 16 blocksize=4096"
	is write_cache "$(queue_file "$DEV" write_cache)" "write through"
	before=$(flushes)
	block 2 b dsync
	must sync "$DEV"
	is flushes $(($(flushes) - before)) 0
	must unmap m
}

# first N: the same as the disk shows it.
first() { dd if="$DEV" iflag=direct bs=4096 skip="$1" count=1 status=none | tr '\0' . | head -c 1; }
tells_nothing() { [ -z "$(show "$C/maps/m/last_error")" ]; }
is_live() { [ "$(show "$C/maps/m/state")" = live ]; }

# cached_disk: DEV is the disk of a device that stays the same one when its cache is lost: the
# device mapper's, on a null_blk. Block 1 is flushed, block 3 is not.
cached_disk() {
	not_local
	needs_module null_blk dm_mod dm_flakey
	disk_of "dm_disk cached \"0 32768 linear \$(null_disk fbn 16 blocksize=4096 cache_size=4) 0\""
	is write_cache "$(queue_file "$DEV" write_cache)" "write back"
	block 1 a
	must sync "$DEV"
	block 3 c
	INSTANCE=$(remote "show $C/exports/e/instance")
}
# table TARGET...: what that device does from now on.
table() { must remote "dmsetup reload farblk-cached --table '0 32768 $*' && dmsetup resume farblk-cached"; }
# cache_lost: the device loses its cache while the export is disabled.
cache_lost() {
	must remote "store $C/exports/e/enable 0"
	table error
	must remote "store /sys/kernel/config/nullb/fbn/power 0; store /sys/kernel/config/nullb/fbn/power 1"
	table linear /dev/fbn 0
	must remote "store $C/exports/e/enable 1"
	wait_for 20 is_live || die "the map is $(show "$C/maps/m/state")"
}

# Disabling the export flushes the device.
disabled() {
	cached_disk
	cache_lost
	is "what was acknowledged" "$(first 3)" c
	ends "a flush" OK sync "$DEV"
	is "the instance" "$(remote "show $C/exports/e/instance")" "$INSTANCE"
	must unmap m
}

# It could not: the client hears of it by its flushes, as long as somebody has the disk open.
disabled_unflushed() {
	cached_disk
	table flakey /dev/fbn 0 0 60 1 error_writes
	exec 7<"$DEV"
	cache_lost
	is "what was flushed" "$(first 1)" a
	is "what was not flushed" "$(first 3)" .
	ends "the flush of what is gone" EIO sync "$DEV"
	ends "the one after it" EIO sync "$DEV"
	[[ $(show "$C/maps/m/last_error") == "EIO "*lost* ]] || bad "last_error is '$(show "$C/maps/m/last_error")'"
	exec 7<&-
	ends "a flush after the last user closed the disk" OK sync "$DEV"
	wait_for 30 tells_nothing || bad "last_error is still '$(show "$C/maps/m/last_error")'"
	[ "$(remote "show $C/exports/e/instance")" != "$INSTANCE" ] || bad "the instance is the old one"
	must unmap m
}

# A planned restart of the server: another export of the device, as after a reboot, knows nothing of
# the one before. The client was told of the flush. What it writes later may be lost.
restarted() {
	local uuid
	cached_disk
	uuid=$(remote "show $C/exports/e/uuid")
	must remote "store $C/exports/e/enable 0 && rmdir $C/exports/e && export_block e $BACK uuid=$uuid"
	wait_for 20 is_live || die "the map is $(show "$C/maps/m/state")"
	[ "$(remote "show $C/exports/e/instance")" != "$INSTANCE" ] || bad "the instance is the old one"
	is "what was acknowledged" "$(first 3)" c
	ends "a flush" OK sync "$DEV"
	block 3 d
	table flakey /dev/fbn 0 0 60 1 error_writes
	must remote "store $C/exports/e/enable 0 && rmdir $C/exports/e"
	table linear /dev/fbn 0
	must remote "export_block e $BACK uuid=$uuid"
	wait_for 20 is_live || die "the map is $(show "$C/maps/m/state")"
	ends "the flush of what could not be flushed" EIO sync "$DEV"
	must unmap m
}

# The device goes, and its cache with it; it comes back under its name.
removed() {
	not_local
	needs_module null_blk
	disk_of "null_disk fbn 16 blocksize=4096 cache_size=4"
	block 1 a
	must sync "$DEV"
	block 3 c
	must remote "store /sys/kernel/config/nullb/fbn/power 0; store $C/exports/e/enable 0
store /sys/kernel/config/nullb/fbn/power 1; store $C/exports/e/enable 1"
	outcome sync "$DEV"
	note "the flush: $GOT; the map: $(show "$C/maps/m/state")"
	[ "$GOT" != OK ] || is "what was acknowledged, and flushed" "$(there 3)" c
	must unmap m
}

# flushed_by COMMAND...: it succeeds, and the device was flushed by then.
flushed_by() {
	local before
	before=$(flushes)
	must "$@"
	[ "$(flushes)" -gt "$before" ] || bad "no flush by: $*"
}

# The device had no cache when it was exported, so the client does not flush it, and now it has one:
# what is acknowledged lasts.
turns_write_back() {
	not_local
	needs_module loop
	disk_of "d=\$(loop_disk \$(loop_file f 16)) && store /sys/class/block/\${d##*/}/queue/write_cache 'write through' && echo \$d"
	is write_cache "$(queue_file "$DEV" write_cache)" "write through"
	must remote "store /sys/class/block/${BACK##*/}/queue/write_cache 'write back'"
	flushed_by block 1 a
	flushed_by fallocate --punch-hole -o 2M -l 64K "$DEV"
	flushed_by blkdiscard -o 3M -l 64K "$DEV"
	is "what was written" "$(there 1)" a
	must remote "store /sys/class/block/${BACK##*/}/queue/write_cache 'write through'"
	must fallocate --punch-hole -o 4096 -l 4096 "$DEV"
	is "what was zeroed" "$(there 1)" .
	must unmap m
}

# logged: BACK is a device with a log of all that reaches it, over a file of the server's.
logged() {
	# $1 MiB of device; the log is larger.
	needs_module dm_log_writes
	remote 'command -v python3 >/dev/null' || skip "the server has no python3"
	must remote "loop_file base $1 >/dev/null && $2 cp --sparse=always /run/loop/base /run/loop/now" || die "no file system"
	disk_of "disk=\$(loop_disk /run/loop/now) && log=\$(loop_disk \$(loop_file log 512)) && dm_disk log \"0 \$(sectors \$disk) log-writes \$disk \$log\""
}
mark() { must remote "dmsetup message farblk-log 0 mark $1"; }
# log_ends: the log is in the file /run/loop/log, its list in LOG.
log_ends() {
	must unmap m
	must remote "is_local || store $C/exports/e/enable 0; dmsetup remove farblk-log && sync"
	LOG=$(remote "python3 $HERE/replay.py /run/loop/log list") || die "$LOG"
}

flags() {
	logged 16 ""
	mark begin
	block 1 a
	block 2 b dsync
	must sync "$DEV"
	block 3 c
	mark end
	log_ends
	note "${LOG//$'\n'/; }"
	# Blocks are 8 sectors. A write is there when it is flushed: the last one comes behind the
	# mark. Linux flushes after a write with O_DSYNC although that was FUA.
	is "what the server's device was told" "$(awk '/ begin$/ {on = 1; next} / end$/ {on = 0} on {printf "%s:%s+%s ", $2, $3, $4}' <<<"$LOG")" \
		"U:16+8 -:8+8 F:0+0 F:0+0 "
}

# What a power cut leaves at a flush or a mark mounts, and has all files that were synced before it.
# On the server. after_cut TYPE FIRST LAST FILES: does these entries, too, and looks.
after_cut() {
	local rc=0
	python3 "$HERE/replay.py" /run/loop/log /run/loop/base "$2" "$3" && cp --sparse=always /run/loop/base /run/loop/cut || return 2
	mkdir -p /run/mnt
	mount -t "$1" -o loop /run/loop/cut /run/mnt || { echo "entry $3: it does not mount"; return 1; }
	(cd /run/mnt && head -n "$4" /run/sums | sha256sum --quiet -c) || { echo "entry $3: a file that was synced is not whole"; rc=1; }
	umount /run/mnt || return 2
	case $1 in
	ext4) fsck.ext4 -fn /run/loop/cut ;;
	xfs) xfs_repair -n /run/loop/cut ;;
	esac >/run/fsck 2>&1 || { echo "entry $3: fsck: $(tail -n 3 /run/fsck)"; rc=1; }
	return $rc
}

FILES=6
! debug_kernel || FILES=3
# Files are written and synced one by one, with others beside them that nobody syncs.
written() {
	local i
	: >/run/sums
	for ((i = 1; i <= FILES; i++)); do
		head -c $((i * 30000)) /dev/urandom >/run/mnt/noise
		head -c $((i * 20000)) /dev/urandom >"/run/mnt/new"
		must mv /run/mnt/new "/run/mnt/$i"
		must sync "/run/mnt/$i" /run/mnt
		(cd /run/mnt && sha256sum "$i") >>/run/sums
		mark "synced-$i"
	done
}

# cuts TYPE: at each mark and at some flushes between them; prints what was wrong.
cuts() {
	local from=0 synced=0 number what name skip=0 every
	must remote "base64 -d >/run/sums <<<$(base64 -w 0 /run/sums)"
	CUTS=0
	every=$(($(grep -c '^[0-9]* F' <<<"$LOG") / 8 + 1))
	while read -r -u 5 number what _ _ name; do
		case $what:$name in
		M:synced-*) synced=${name#*-} ;;
		*F*) skip=$(((skip + 1) % every)); [ $skip = 0 ] || continue ;;
		*) continue ;;
		esac
		CUTS=$((CUTS + 1))
		remote "$(declare -f after_cut); after_cut $1 $from $number $synced" || return
		from=$((number + 1))
	done 5<<<"$LOG"
}

# power_cut TYPE MIB
power_cut() {
	needs_own_module "$1"
	needs_module "$1"
	logged "$2" "mkfs.$1 -q /run/loop/base &&"
	mkdir -p /run/mnt
	must mount "$DEV" /run/mnt
	written
	must umount /run/mnt
	log_ends
	note "$(grep -c '^[0-9]* F' <<<"$LOG") flushes, $(grep -c '^[0-9]* [F]*U' <<<"$LOG") FUA writes in $(wc -l <<<"$LOG") entries"
	cuts "$1" || bad "a power cut loses what was synced"
	note "$CUTS power cuts"
	[ $CUTS -ge $FILES ] || bad "only $CUTS power cuts"
}
ext4_power_cut() { power_cut ext4 32; }
xfs_power_cut() { power_cut xfs 300; }

# Else the others prove nothing: a file system that does not flush loses files.
no_barrier() {
	needs_own_module ext4
	logged 32 "mkfs.ext4 -q /run/loop/base &&"
	mkdir -p /run/mnt
	must mount -o nobarrier "$DEV" /run/mnt
	written
	must umount /run/mnt
	log_ends
	if cuts ext4 >/run/cuts; then bad "$CUTS power cuts lose nothing although nothing was flushed"; else note "$(tail -n 2 /run/cuts)"; fi
}

scenario survives_fua "flushed and FUA writes survive the loss of a cache"
scenario survives_flush "the same where the device has no FUA"
scenario write_through "a device without a cache is not flushed"
scenario disabled "disabling an export flushes its device"
scenario disabled_unflushed "flushes fail if it could not be flushed"
scenario restarted "no flush fails after a planned restart, unless the device was not flushed"
scenario removed "no flush succeeds if the device went with its cache"
scenario turns_write_back "a device gets a cache while it is exported: what is acknowledged lasts"
scenario flags "FLUSH and FUA reach the device, in their order"
scenario ext4_power_cut "ext4: whatever was synced is there after a power cut"
is_short || scenario xfs_power_cut "xfs: whatever was synced is there after a power cut"
scenario no_barrier "a file system that does not flush loses files, so this is noticed"
run_scenarios
