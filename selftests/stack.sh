#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What people put between a disk and a file system: encryption, volumes.
. "$(dirname "$0")/lib.sh"

start() {
	needs_module loop
	needs_own_module ext4
	# LVM would not take a null_blk, if it were local.
	disk_of "loop_disk \$(loop_file f $1)"
	mkdir -p /run/mnt
}
# file_system DEVICE: an ext4 with a few files; same_files DEVICE: they are still there, and fsck
# finds nothing.
file_system() {
	must mkfs.ext4 -q "$1"
	must mount "$1" /run/mnt
	must cp -rp /usr/lib/x86_64-linux-gnu/gconv /run/mnt
	(cd /run/mnt && find . -type f -exec sha256sum {} +) | sort >/run/sums
	must umount /run/mnt
}
same_files() {
	must fsck.ext4 -fn "$1" >/run/fsck 2>&1
	must mount "$1" /run/mnt
	(cd /run/mnt && find . -type f -exec sha256sum {} +) | sort | cmp - /run/sums || wrong "the files differ"
	must umount /run/mnt
}

crypt() {
	local key=/run/key
	needs cryptsetup
	needs_own_module dm_mod dm_crypt
	start 64
	head -c 64 /dev/urandom >$key
	must cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file $key "$DEV"
	must cryptsetup open --allow-discards --key-file $key "$DEV" farblk-crypt
	file_system /dev/mapper/farblk-crypt
	must mount /dev/mapper/farblk-crypt /run/mnt
	must fstrim /run/mnt
	must umount /run/mnt
	must cryptsetup close farblk-crypt
	must unmap m
	must map m e
	must cryptsetup open --key-file $key "$DEV" farblk-crypt
	same_files /dev/mapper/farblk-crypt
	must cryptsetup close farblk-crypt
	must unmap m
}

export LVM_SUPPRESS_FD_WARNINGS=1
# lvm_on COMMAND...: on our disk alone, without a udev.
lvm_on() {
	"$1" --config "devices { use_devicesfile=0 filter=[\"a|^$DEV\$|\",\"r|.*|\"] dir=\"/dev\" scan=\"/dev\" obtain_device_list_from_udev=0 external_device_info_source=\"none\" }
		activation { udev_sync=0 udev_rules=0 monitoring=0 } global { use_lvmlockd=0 locking_type=1 event_activation=0 }" "${@:2}" >/run/lvm 2>&1 || { cat /run/lvm; return 1; }
}
volumes() {
	needs lvm
	needs_own_module dm_mod
	start 96
	must lvm_on pvcreate "$DEV"
	must lvm_on vgcreate farblk "$DEV"
	must lvm_on lvcreate -W n -L 48M -n a farblk
	must lvm_on lvcreate -W n -L 16M -n b farblk
	file_system /dev/mapper/farblk-a
	must mkfs.ext4 -q /dev/mapper/farblk-b
	must lvm_on lvextend -L +16M farblk/a
	must resize2fs -f /dev/mapper/farblk-a >/run/resize 2>&1
	must lvm_on lvremove -y farblk/b
	must lvm_on vgchange -an farblk
	must unmap m
	must map m e
	must lvm_on vgchange -ay farblk
	is "the volume's size" "$(blockdev --getsize64 /dev/mapper/farblk-a)" $((64 << 20))
	same_files /dev/mapper/farblk-a
	must lvm_on vgchange -an farblk
	must unmap m
}

scenario crypt "dm-crypt"
scenario volumes "LVM"
run_scenarios
