#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Builds a kernel for arm64 with pages of 64 KiB, from the source of the stock one; clang, rustc and
# the core library of Rust are those of the build root, which compile for any machine. Prints the
# folder, which is like that of kernel.sh; boot/ holds Image.
. "$(dirname "$0")/lib.sh"

config=$SRC/tools/setup/debug/arm64.config
args='ARCH=arm64 LLVM=1'
# shellcheck disable=SC2086
kmake() { in_root make -C "$new/linux" -s $args "$@"; }

source_tree() {
	cp -a "$stock/linux" "$new/"
	kmake mrproper
	rm -f "$new/linux/vmlinux"
}

configure() {
	local lost
	cp "$config" "$new/linux/.config"
	kmake olddefconfig
	# An option that went away is a page size or a device that nobody tests.
	lost=$(grep -E '^(CONFIG_|# CONFIG_.* is not set)' "$config" | while read -r line; do
		case $line in
		'# '*) ! grep -q "^${line:2:-11}=" "$new/linux/.config" || echo "$line" ;;
		*) grep -qxF -- "$line" "$new/linux/.config" || echo "$line" ;;
		esac
	done)
	[ -z "$lost" ] || die "the kernel cannot be configured with: $(echo $lost)" "${config#"$SRC"/}"
}

build() { kmake -j"$(nproc)" Image modules; }

# What a module's build and the guests need; the objects, most of the gigabytes, are not.
harvest() {
	local release
	release=$(kmake kernelrelease)
	printf '%s\n' "$args" >"$new/make-args"
	mkdir -p "$new/boot" "$new/modules/$release/kernel"
	mv "$new/linux/arch/arm64/boot/Image" "$new/boot/"
	cp "$new/linux"/modules.{order,builtin,builtin.modinfo} "$new/modules/$release/"
	find "$new/linux" \( -name '*.o' -o -name '*.a' -o -name '*.cmd' -o -name 'vmlinux*' \) -type f \
		-not -path '*/scripts/*' -not -path '*/tools/*' -delete
	printf '%s\n' "$release" >"$new/release"
}

main() {
	local new=$dir.new
	[ ! -e "$dir/release" ] || return 0
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	step "arm64 kernel: source" source_tree
	step "arm64 kernel: configuration" configure
	step "arm64 kernel: build" build
	step "arm64 kernel: result" harvest
	mv "$new" "$dir"
}

stock=$("$SRC/tools/setup/kernel.sh")
"$SRC/tools/setup/buildroot.sh" arm64
dir=$(entry kernel-arm64 "$stock $(cat "$config" "$0" | sha256sum)")
locked kernel-arm64 main
printf '%s\n' "$dir"
