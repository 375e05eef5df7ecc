# SPDX-License-Identifier: GPL-2.0
# Block devices for a server to export. Each function prints the path of what it made; clean removes
# them all. Sourced by lib.sh.
# shellcheck shell=bash
# libdevmapper makes the nodes itself: in a guest nobody else does.
export DM_DISABLE_UDEV=1

# null_disk NAME MIB [ATTRIBUTE=VALUE]...: a null_blk that keeps what is written.
null_disk() {
	local n=/sys/kernel/config/nullb/$1
	modprobe null_blk nr_devices=0
	mkdir "$n" && settings "$n" "size=$2" memory_backed=1 "${@:3}" power=1 && echo "/dev/$1"
}

# loop_file NAME MIB: a sparse file in memory. loop_disk FILE [OPTION]...: a loop device over it.
loop_file() { mkdir -p /run/loop && truncate -s "$2M" "/run/loop/$1" && echo "/run/loop/$1"; }
loop_disk() { modprobe loop; losetup --find --show "${@:2}" "$1"; }

# brd_disk MIB: a RAM disk; one that is built in has its own size.
brd_disk() { modprobe brd rd_nr=1 rd_size=$(($1 << 10)); echo /dev/ram0; }

# scsi_disk MIB [PARAMETER=VALUE]...: a scsi_debug. Without a delay it completes in the context of
# the submitter.
scsi_disk() {
	modprobe sd_mod; modprobe scsi_debug dev_size_mb="$1" delay=0 "${@:2}" && wait_for 30 scsi_name >/dev/null && scsi_name
}
scsi_name() { local b; for b in /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/*; do [ -d "$b" ] && [ -b "/dev/${b##*/}" ] && echo "/dev/${b##*/}" && return; done; return 1; }

# dm_disk NAME TABLE: a device of the device mapper, farblk-NAME.
dm_disk() { modprobe dm-mod; dmsetup create "farblk-$1" --table "$2" && echo "/dev/$(dmsetup info -c --noheadings -o blkdevname "farblk-$1")"; }
# sectors DEVICE
sectors() { blockdev --getsz "$1"; }

# dm_clean: removes those, and what lies on them; fails if one is in use. disks_clean: removes all
# others, too. Both fork only where there is something. dm_users: says which are left, how often
# they are open, and which processes have a block device open.
dm_clean() {
	local d name busy left=3
	while [ $((left--)) -gt 0 ]; do
		busy=0
		for d in /sys/class/block/dm-*/dm/name; do
			[ ! -e "$d" ] || { name=$(<"$d"); [[ $name != farblk* ]] || dmsetup remove "$name" || busy=1; }
		done
		[ $busy = 1 ] || return 0
	done
	return 1
} 2>/dev/null
dm_users() {
	local file
	dmsetup info -c --noheadings -o name,open
	for file in /proc/[0-9]*/fd/*; do [ ! -b "$file" ] || echo "$(tr '\0' ' ' <"${file%/fd/*}/cmdline"): $(readlink "$file")"; done
} 2>/dev/null

disks_clean() {
	local d
	for d in /sys/class/block/loop*/loop/backing_file; do
		[ ! -e "$d" ] || [[ $(<"$d") != /run/loop/* ]] || { d=${d%/loop/*}; losetup --detach "/dev/${d##*/}"; }
	done
	[ ! -d /run/loop ] || rm -r /run/loop
	[ ! -d /run/local ] || rm -r /run/local
	for d in /sys/kernel/config/nullb/*/; do [ ! -d "$d" ] || { store "$d/power" 0; rmdir "$d"; }; done
	[ ! -d /sys/module/scsi_debug/holders ] || modprobe -r scsi_debug
	[ ! -d /sys/module/brd/holders ] || rmmod brd
} 2>/dev/null

# serve_block NAME DEVICE [ATTRIBUTE=VALUE]...: serve of a block device.
serve_block() { remote "is_local || [ -d $C/ports/p ] || port_add p $FARBLK_SERVER; export_block $*" || { note "export $1: $(remote "show $C/exports/$1/last_error")"; return 1; }; }

# back LINE: BACK is the device whose path LINE prints on the server. disk_of LINE: and DEV the disk
# of map m of its export e.
back() { BACK=$(remote "$1") && [ -n "$BACK" ] || die "$1: ${BACK:-nothing}"; }
disk_of() { back "$1"; must serve_block e "$BACK"; must map m e "${@:2}"; }
