#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Makes what the guests boot, from Debian packages alone: root.ext4 (a Debian root with the modules of the kernel under
# test), initramfs (busybox, enough to mount it) and vmlinux, or linux for User Mode Linux, or Image for arm64. Prints the folder.
# Takes what kernel.sh takes.
. "$(dirname "$0")/lib.sh"

PACKAGES="bash coreutils util-linux mount kmod iproute2 procps findutils diffutils gawk grep sed tar jq fio e2fsprogs xfsprogs
 dmsetup nvme-cli nbd-server nbd-client rdmacm-utils perftest ibverbs-providers stress-ng
 nftables fdisk btrfs-progs lvm2 mdadm cryptsetup-bin dbench sqlite3 postgresql-17"
# Of arm64, whose programs do not run here: these are unpacked and not configured, which is enough for load.sh, integrity.sh and
# what else needs no more programs.
ARM64_PACKAGES="base-files base-passwd libc-bin bash dash coreutils util-linux mount kmod iproute2 procps findutils diffutils gawk grep sed
 tar jq fio e2fsprogs fdisk dmsetup busybox-static python3 ibverbs-providers"
# What is in them and nobody uses here: half of the image.
EXCLUDE="/usr/share/man/* /usr/share/doc/* /usr/share/locale/* /usr/share/i18n/* /usr/lib/*/libLLVM* /usr/lib/*/libz3*
 /usr/lib/postgresql/*/lib/bitcode/* /usr/lib/postgresql/*/lib/llvmjit*"

# What the initramfs inserts, and what tests may modprobe; their dependencies follow by themselves.
BOOT_MODULES="virtio_blk virtio_net ext4"
MODULES="$BOOT_MODULES configfs libcurve25519 libchacha20poly1305 ib_core ib_uverbs rdma_cm rdma_ucm rdma_rxe nvme-rdma nvmet nvmet-rdma nvme-tcp nvmet-tcp brd loop null_blk nbd
 xfs btrfs overlay dummy veth tun ifb sch_netem sch_ingress act_gact act_mirred cls_flower cls_matchall
 dm-mod dm-flakey dm-delay dm-log-writes dm-integrity dm-crypt dm-thin-pool dm-multipath dm-round-robin
 raid1 raid10 zram scsi_debug sd_mod
 xts aesni-intel algif_skcipher nf_tables"

# modules: the closure of $MODULES, decompressed, in $new/modules.
modules() {
	local from=$kernel/modules/$release to=$new/modules/lib/modules/$release all=$new/all name file
	# depmod wants the whole tree, and writes beside it: a tree of links keeps the cached kernel as it is.
	mkdir -p "$all/lib/modules/$release" "$to"
	ln -s "$from/kernel" "$all/lib/modules/$release/kernel"
	cp "$from"/modules.{order,builtin,builtin.modinfo} "$all/lib/modules/$release/"
	cp "$from"/modules.{order,builtin,builtin.modinfo} "$to/"
	in_root depmod -b "$all" "$release"
	for name in $MODULES; do
		# A debug kernel has what the tests need built in.
		in_root modprobe -d "$all" -S "$release" --show-depends --ignore-install "$name" || [ "$kind" != stock ] ||
			die "the kernel has no module $name"
	done | awk '$1 == "insmod" {print $2}' | sort -u >"$new/closure"
	while read -r file; do
		file=${file#*/lib/modules/"$release"/}
		mkdir -p "$to/$(dirname "$file")"
		case $file in
		*.xz) in_root xz -dc "$from/$file" >"$to/${file%.xz}" ;;
		*.zst) in_root zstd -qdc "$from/$file" >"$to/${file%.zst}" ;;
		*) cp "$from/$file" "$to/$file" ;;
		esac
	done <"$new/closure"
	in_root depmod -b "$new/modules" "$release"
}

initramfs() {
	local dir=$new/initramfs.d from=$BUILDROOT name
	[ "$kind" != arm64 ] || from=$new/root
	mkdir -p "$dir"/{bin,dev,proc,root,modules}
	cp "$from/usr/bin/busybox" "$dir/bin/busybox"
	for name in $BOOT_MODULES; do
		in_root modprobe -d "$new/modules" -S "$release" --show-depends "$name"
	done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$new/boot-modules"
	: >"$dir/modules/order"
	while read -r name; do
		cp "$name" "$dir/modules/"
		printf '%s\n' "${name##*/}" >>"$dir/modules/order"
	done <"$new/boot-modules"
	cat >"$dir/init" <<-'INIT'
		#!/bin/busybox sh
		b=/bin/busybox
		$b mount -t devtmpfs dev /dev
		while read -r m; do $b insmod /modules/$m; done </modules/order
		for d in vd ubd; do [ ! -b /dev/${d}a ] || disk=/dev/$d; done
		$b mount -t ext4 -o noatime ${disk}a /root && $b mkdir -p /root/farblk && $b tar -x -C /root/farblk -f ${disk}b ||
			$b poweroff -f
		$b mount -o move /dev /root/dev
		exec $b switch_root /root /farblk/vm/guest/init
	INIT
	chmod +x "$dir/init"
	in_root bash -c "cd '$dir' && find . | cpio -o -H newc -R 0:0 --quiet" >"$new/initramfs"
}

# root OPTION...: the root, by mmdebstrap.
root() {
	local m exclude=()
	m=$(mirror)
	set -f
	exclude=($EXCLUDE)
	set +f
	in_root mmdebstrap --mode=root --components=main --skip=check/qemu \
		--aptopt='APT::Install-Recommends "false"' \
		"${exclude[@]/#/--dpkgopt=path-exclude=}" "$@" \
		"$DEBIAN_SUITE" "$new/root" "deb $m $DEBIAN_SUITE main" "deb $m $DEBIAN_SUITE-updates main"
}

native() {
	# PostgreSQL makes a database when it is installed; tests copy it, so it is a small one.
	cat >"$new/createcluster.conf" <<-'CONF'
		initdb_options = '--wal-segsize=1 --no-sync'
	CONF
	root --variant=essential --include="$(echo $PACKAGES | tr ' ' ',')" --dpkgopt=force-confold \
		--essential-hook='mkdir -p "$1/etc/postgresql-common"' \
		--essential-hook='copy-in '"$new/createcluster.conf"' /etc/postgresql-common' \
		--customize-hook='copy-in '"$new/modules/lib/modules"' /usr/lib' \
		--customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/etc/resolv.conf'
}

# foreign: what scripts of the packages would do, as far as it is needed, is done here.
foreign() {
	root --variant=extract --architectures=arm64 --include="$(echo $ARM64_PACKAGES | tr ' ' ',')"
	cp "$new/root/usr/share/base-passwd/passwd.master" "$new/root/etc/passwd"
	cp "$new/root/usr/share/base-passwd/group.master" "$new/root/etc/group"
	ln -s gawk "$new/root/usr/bin/awk"
	cp -r "$new/modules/lib/modules" "$new/root/usr/lib/"
	rm -rf "$new"/root/var/lib/apt/lists/* "$new"/root/var/cache/apt/* "$new/root/etc/resolv.conf"
}

image() {
	if [ "$kind" = arm64 ]; then foreign; else native; fi
	# The image is never written to (guests boot from a snapshot), so the journal is left out; the rest is room for tests.
	in_root mke2fs -q -t ext4 -O ^has_journal -m 0 -L guest -d "$new/root" "$new/root.ext4" "$(($(du -sm "$new/root" | cut -f1) + 400))M"
}

# The uncompressed kernel saves the decompressor's second on each boot, and its random load address.
image_of_kernel() {
	if [ "$kind" = stock ]; then
		in_root bash "$kernel/linux/scripts/extract-vmlinux" "$kernel/boot/vmlinuz" >"$new/vmlinux"
	else
		cp "$kernel"/boot/* "$new/"
	fi
}

main() {
	local new=$dir.new
	[ -e "$dir/release" ] && return
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	export TMPDIR=$CACHE
	step "guest: kernel $release and its modules" modules
	step "guest: kernel image" image_of_kernel
	step "guest: Debian $DEBIAN_SUITE root, fio, rdma, xfs" image
	step "guest: initramfs" initramfs
	rm -rf "$new"/{root,all,modules,initramfs.d,closure,boot-modules,createcluster.conf}
	printf '%s\n' "$release" >"$new/release"
	rm -rf "$dir"
	mv "$new" "$dir"
}

kind=stock
case ${1:-} in uml | debug | arm64) kind=$1 BOOT_MODULES="" ;; esac
kernel=$("$(dirname "$0")/kernel.sh" "$@")
release=$(cat "$kernel/release")
dir=$(entry guest "$kernel $DEBIAN_SUITE $(sha256sum <"$0")")
locked guest main
printf '%s\n' "$dir"
