#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Makes the build root: a Debian chroot in the cache with the distribution's own rustc, bindgen, compilers and QEMU.
. "$(dirname "$0")/lib.sh"

install_mmdebstrap() { apt-get update -q && apt-get install -qy --no-install-recommends mmdebstrap debian-archive-keyring util-linux; }

bootstrap() {
	local new=$BUILDROOT.new m
	m=$(mirror)
	rm -rf "$new"
	TMPDIR=$CACHE mmdebstrap --variant=important --mode=root --components=main --skip=check/qemu \
		--include="$(echo $BUILDROOT_PACKAGES | tr ' ' ',')" \
		--aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		"$DEBIAN_SUITE" "$new" \
		"deb $m $DEBIAN_SUITE main" "deb $m $DEBIAN_SUITE-updates main" "deb $m $KERNEL_SUITE main"
	mv "$new" "$BUILDROOT"
}

build() {
	[ "$(dpkg --print-architecture)" = amd64 ] || die "the build root is made for amd64 only"
	command -v mmdebstrap >/dev/null || step "installing mmdebstrap" install_mmdebstrap
	step "build root: Debian $DEBIAN_SUITE, rustc, QEMU" bootstrap
}

# checkers: installs the packages of CHECK_PACKAGES.
checkers() {
	in_root apt-get update -q
	# shellcheck disable=SC2086
	in_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $CHECK_PACKAGES
	printf '%s\n' "$CHECK_PACKAGES" >"$checked"
}

# Each list has a mark of its own, since checkouts that differ use the same build root.
checked=$(printf '%s/check-packages-%s' "$BUILDROOT" "$(printf '%s' "$CHECK_PACKAGES" | sha256sum | cut -c1-16)")

main() {
	need_root
	[ -d "$BUILDROOT" ] || build
	[ -e "$checked" ] || step "build root: $CHECK_PACKAGES" checkers
}
locked buildroot main
