#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Makes a guest with systemd on which DKMS has built the module from build/deb/farblk-dkms_*.deb: the packages that it depends
# on and the headers and source of the stock kernel come from Debian, nothing from the checkout. DKMS runs in a chroot, since
# the guest, which is emulated, would take an hour. Prints the folder.
. "$(dirname "$0")/lib.sh"

image() {
	local m series
	m=$(mirror)
	series=$(printf '%s' "$release" | cut -d. -f1,2)
	# What boot.sh puts in.
	in_root mmdebstrap --variant=important --mode=root --components=main --skip=check/qemu \
		--include="systemd,systemd-sysv,udev,kmod,iproute2,procps,e2fsprogs,jq,dkms,gcc,make,rustc,rust-src,bindgen,bc,bison,flex,dwarves,libelf-dev,libssl-dev,openssl,python3,xz-utils,linux-headers-$release,linux-source-$series" \
		--aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		"$DEBIAN_SUITE" "$new/root" "deb $m $DEBIAN_SUITE main" "deb $m $DEBIAN_SUITE-updates main" "deb $m $KERNEL_SUITE main"
	mkdir -p "$new/modules"
	in_root debugfs -R "rdump /usr/lib/modules $new/modules" "$guest/root.ext4"
	cp -a "$new/modules/modules/$release/." "$new/root/usr/lib/modules/$release/"
	ln -sf /usr/lib/systemd/system/multi-user.target "$new/root/etc/systemd/system/default.target"
}

build() {
	local root=$new/root
	cp "$deb" "$root/root/farblk-dkms.deb"
	in_root bash -c "mount --bind /dev '$root/dev' && mount -t proc proc '$root/proc' && mount -t sysfs sys '$root/sys' &&
		time chroot '$root' env PATH=/usr/sbin:/usr/bin dpkg -i /root/farblk-dkms.deb"
	cat "$root/var/lib/farblk/dkms-$release.log"
	[ -e "$root/usr/lib/modules/$release/updates/dkms/farblk.ko" ] || [ -e "$root/usr/lib/modules/$release/updates/dkms/farblk.ko.xz" ]
	in_root mke2fs -q -t ext4 -m 0 -L boot -d "$root" "$new/root.ext4" "$(($(du -sm "$root" | cut -f1) + 400))M"
}

main() {
	local new=$dir.new
	[ -e "$dir/release" ] && return
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	export TMPDIR=$CACHE
	step "dkms guest: Debian $DEBIAN_SUITE root with compilers" image
	step "dkms guest: DKMS builds the module" build
	ln "$guest/vmlinux" "$guest/initramfs" "$new/"
	rm -rf "$new"/{root,modules}
	printf '%s\n' "$release" >"$new/release"
	rm -rf "$dir"
	mv "$new" "$dir"
}

deb=$(ls "$SRC"/build/deb/farblk-dkms_*.deb)
guest=$("$(dirname "$0")/guest.sh")
release=$(cat "$guest/release")
dir=$(entry dkms "$guest $DEBIAN_SUITE $(cat "$0" "$deb" | sha256sum)")
locked dkms main
printf '%s\n' "$dir"
