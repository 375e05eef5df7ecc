#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Builds a kernel with MODVERSIONS and GENDWARFKSYMS from the source of the stock one. Prints the folder, which is like that
# of kernel.sh; boot/ holds vmlinux.
. "$(dirname "$0")/lib.sh"

config=$SRC/tools/setup/debug/modversions.config
kmake() { in_root make -C "$new/linux" -s "$@"; }

source_tree() {
	cp -a "$stock/linux" "$new/"
	kmake mrproper
	rm -f "$new/linux/vmlinux"
}

configure() {
	local lost
	cp "$config" "$new/linux/.config"
	kmake olddefconfig
	lost=$(grep '^CONFIG_' "$config" | grep -vxFf "$new/linux/.config") || true
	[ -z "$lost" ] || die "the kernel cannot be configured with: $(echo $lost)" "tools/setup/debug/modversions.config"
}

build() { kmake -j"$(nproc)" vmlinux modules; }

harvest() {
	mkdir -p "$new/boot"
	cp "$new/linux/vmlinux" "$new/boot/"
	in_root strip --strip-debug "$new/boot/vmlinux"
	: >"$new/make-args"
	find "$new/linux" \( -name '*.o' -o -name '*.a' -o -name '*.cmd' -o -name 'vmlinux*' \) -type f -not -path '*/scripts/*' -not -path '*/tools/*' -delete
	kmake kernelrelease >"$new/release"
}

main() {
	local new=$dir.new
	[ ! -e "$dir/release" ] || return 0
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	step "modversions kernel: source" source_tree
	step "modversions kernel: configuration" configure
	step "modversions kernel: build" build
	step "modversions kernel: result" harvest
	mv "$new" "$dir"
}

stock=$("$SRC/tools/setup/kernel.sh")
dir=$(entry kernel-modversions "$stock $(cat "$config" "$0" | sha256sum)")
locked kernel-modversions main
printf '%s\n' "$dir"
