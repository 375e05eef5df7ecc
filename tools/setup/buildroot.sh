#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Makes the build root: a Debian chroot in the cache with the distribution's own rustc, bindgen, compilers and QEMU.
# buildroot.sh arm64 adds the QEMU of that machine.
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

# install LIST MARK: installs the packages of a list, and says so in a file.
install() {
	in_root apt-get update -q
	# shellcheck disable=SC2086
	in_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $1
	printf '%s\n' "$1" >"$2"
}

# add NAME LIST: the packages of a list, if they are not there. Each list has a mark of its own, since checkouts that differ
# use the same build root.
add() {
	local mark
	mark=$BUILDROOT/$1-packages-$(printf '%s' "$2" | sha256sum | cut -c1-16)
	[ -e "$mark" ] || step "build root: $2" install "$2" "$mark"
}

main() {
	need_root
	[ -d "$BUILDROOT" ] || build
	add check "$CHECK_PACKAGES"
	[ "${1:-}" != arm64 ] || add arm64 "$ARM64_PACKAGES"
}
locked buildroot main "$@"
