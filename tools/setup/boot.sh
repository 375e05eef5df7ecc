#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Makes what the guests of tools/vm/boot start from, from Debian packages alone: a root with systemd as process 1, stripped of
# what takes time to boot; kernel, initramfs and modules are those of the other guests. Prints the folder.
. "$(dirname "$0")/lib.sh"

PACKAGES="apt systemd systemd-sysv udev kmod iproute2 procps util-linux mount bash coreutils grep sed gawk findutils diffutils tar
 gzip e2fsprogs mdadm lvm2 fdisk jq"
EXCLUDE="/usr/share/man/* /usr/share/doc/* /usr/share/locale/* /usr/share/i18n/* /usr/share/zoneinfo/* /usr/lib/udev/hwdb.d/*"
# What is started at boot, of the units, generators and rules of the packages: each of the others costs some tenths of a
# second, and no test needs it.
WANTED="sys-kernel-config.mount systemd-journald.service systemd-udevd.service systemd-udev-trigger.service
 systemd-journald.socket systemd-journald-dev-log.socket systemd-udevd-control.socket systemd-udevd-kernel.socket tmp.mount
 systemd-user-sessions.service remote-fs.target systemd-fstab-generator 50-udev-default.rules 55-dm.rules 56-lvm.rules
 60-block.rules 60-infiniband.rules 60-persistent-storage.rules 63-md-raid-arrays.rules 64-md-raid-assembly.rules 69-lvm.rules
 80-drivers.rules 95-dm-notify.rules 99-systemd.rules"

# strip ROOT: leaves only what is wanted.
strip() {
	local file
	for file in "$1"/{usr/lib,etc}/systemd/system/*.wants/* "$1"/usr/lib/systemd/system-generators/* "$1"/usr/lib/udev/rules.d/*; do
		case " $(echo $WANTED) " in *" ${file##*/} "*) ;; *) rm -f "$file" ;; esac
	done
	# A machine without a seat, an input or a sound has few devices to look at.
	mkdir -p "$1/etc/systemd/system/systemd-udev-trigger.service.d"
	printf '%s\n' '[Service]' 'ExecStart=' 'ExecStart=udevadm trigger --action=add --subsystem-match=block --subsystem-match=net' \
		>"$1/etc/systemd/system/systemd-udev-trigger.service.d/guest.conf"
	ln -sf /usr/lib/systemd/system/multi-user.target "$1/etc/systemd/system/default.target"
}

image() {
	local m exclude
	m=$(mirror)
	set -f
	exclude=($EXCLUDE)
	set +f
	in_root mmdebstrap --variant=essential --mode=root --components=main --skip=check/qemu \
		--include="$(echo $PACKAGES | tr ' ' ',')" \
		--aptopt='APT::Install-Recommends "false"' \
		"${exclude[@]/#/--dpkgopt=path-exclude=}" \
		--customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/etc/resolv.conf' \
		"$DEBIAN_SUITE" "$new/root" "deb $m $DEBIAN_SUITE main" "deb $m $DEBIAN_SUITE-updates main"
	mkdir -p "$new/modules"
	in_root debugfs -R "rdump /usr/lib/modules $new/modules" "$guest/root.ext4"
	[ -e "$new/modules/modules/$release/modules.dep" ] || die "the image of the guests has no modules"
	cp -a "$new/modules/modules" "$new/root/usr/lib/"
	strip "$new/root"
	in_root mke2fs -q -t ext4 -m 0 -L boot -d "$new/root" "$new/root.ext4" "$(($(du -sm "$new/root" | cut -f1) + 300))M"
}

main() {
	local new=$dir.new
	[ -e "$dir/release" ] && return
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	export TMPDIR=$CACHE
	step "boot guest: Debian $DEBIAN_SUITE root with systemd" image
	ln "$guest/vmlinux" "$guest/initramfs" "$new/"
	rm -rf "$new"/{root,modules}
	printf '%s\n' "$release" >"$new/release"
	rm -rf "$dir"
	mv "$new" "$dir"
}

guest=$("$(dirname "$0")/guest.sh")
release=$(cat "$guest/release")
dir=$(entry boot "$guest $DEBIAN_SUITE $(sha256sum <"$0")")
locked boot main
printf '%s\n' "$dir"
