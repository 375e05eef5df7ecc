#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Builds a kernel that finds bugs, from the source of the stock one: debug-kernel.sh uml|debug. What it is made of is in
# tools/setup/debug. Prints the folder, which is like that of kernel.sh; boot/ holds vmlinux, or the program "linux".
. "$(dirname "$0")/lib.sh"

here=$SRC/tools/setup/debug
case ${1:-} in
uml)
	# clang takes -mcmodel=large for modules, and Rust has to follow: UML's modules lie far from the program.
	args='ARCH=um LLVM=1 KCFLAGS=-Wno-null-pointer-arithmetic'
	module_args='KRUSTFLAGS="-Crelocation-model=static -Ccode-model=large"'
	targets="linux modules" image=linux
	;;
debug) args='LLVM=1' module_args="" targets="vmlinux modules" image=vmlinux ;;
*) die "debug-kernel.sh: uml or debug" ;;
esac

kmake() { eval in_root make -C "\$new/linux" -s "$args" '"$@"'; }

# source_tree: the stock kernel's, as Debian ships it, and our patches.
source_tree() {
	cp -a "$stock/linux" "$new/"
	kmake mrproper
	rm -f "$new/linux/vmlinux"
	for patch in "${patches[@]}"; do in_root patch -d "$new/linux" -p1 --fuzz=0 -i "$patch"; done
}

configure() {
	local lost
	cat "${configs[@]}" >"$new/linux/.config"
	kmake olddefconfig
	# An option that went away is a hole in the net.
	lost=$(cat "${configs[@]}" | grep -E '^(CONFIG_|# CONFIG_.* is not set)' | while read -r line; do
		case $line in
		'# '*) ! grep -q "^${line:2:-11}=" "$new/linux/.config" || echo "$line" ;;
		*) grep -qxF -- "$line" "$new/linux/.config" || echo "$line" ;;
		esac
	done)
	[ -z "$lost" ] || die "the kernel cannot be configured with: $(echo $lost)" "tools/setup/debug/*.config"
}

build() { kmake -j"$(nproc)" $targets; }

# What a module's build, the guests and a reader of a report need; the objects, most of the gigabytes, are not.
harvest() {
	local release
	release=$(kmake kernelrelease)
	printf '%s\n' "$release" >"$new/release"
	printf '%s %s\n' "$args" "$module_args" >"$new/make-args"
	mkdir -p "$new/boot" "$new/modules/$release/kernel"
	mv "$new/linux/$image" "$new/boot/"
	cp "$new/linux"/modules.{order,builtin,builtin.modinfo} "$new/modules/$release/"
	find "$new/linux" \( -name '*.o' -o -name '*.a' -o -name '*.cmd' -o -name 'vmlinux*' \) -type f -not -path '*/scripts/*' -not -path '*/tools/*' -delete
}

main() {
	local new=$dir.new
	[ ! -e "$dir/release" ] || return 0
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	step "$1 kernel: source" source_tree
	step "$1 kernel: configuration" configure
	step "$1 kernel: build" build
	step "$1 kernel: result" harvest
	mv "$new" "$dir"
}

stock=$("$SRC/tools/setup/kernel.sh")
configs=("$here/common.config" "$here/$1.config")
shopt -s nullglob
patches=("$here"/{all,"$1"}-*.patch)
dir=$(entry "kernel-$1" "$stock $(cat "${configs[@]}" "${patches[@]}" "$0" | sha256sum)")
locked "kernel-$1" main "$1"
printf '%s\n' "$dir"
