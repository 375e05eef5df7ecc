#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Prepares what farblk.ko is built against and what the guests boot: the distribution's kernel, and its source tree with
# the Rust metadata that Debian's headers leave out. Prints the folder: linux/ (tree), boot/vmlinuz, modules/ (lib/modules),
# release, and make-args, the words that make needs to build a module. kernel.sh [stock|oldest|RELEASE|uml|debug|arm64]; another one
# of the same series is taken for "stock" and "oldest" if tools/setup/versions names one that is gone, but never for RELEASE.
. "$(dirname "$0")/lib.sh"

# Another tree of that kind, for example that of tools/upstream/check.
[ -z "${KERNEL_TREE:-}" ] || { printf '%s\n' "$KERNEL_TREE"; exit; }
exact=
case ${1:-stock} in
stock) wanted=$KERNEL_RELEASE ;;
oldest) wanted=$KERNEL_OLDEST ;;
uml | debug) exec "$(dirname "$0")/debug-kernel.sh" "$1" ;;
arm64) exec "$(dirname "$0")/arm64-kernel.sh" ;;
*) wanted=$1 exact=1 ;;
esac

series_of() { printf '%s' "$1" | cut -d. -f1,2; }
version_of() { in_root apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n 's/^Version: //p'; }
# usable RELEASE: its headers and its source are both there; a suite keeps old headers longer than old sources.
usable() {
	local version
	version=$(version_of "linux-headers-$1")
	[ -n "$version" ] && [ "$version" = "$(version_of "linux-source-$(series_of "$1")")" ]
}

# resolve RELEASE: the kernel release to use: RELEASE if the suite still has it, else the newest of KERNEL_SERIES.
resolve() {
	local all series release got=
	if usable "$1"; then printf '%s' "$1"; return; fi
	all=$(in_root apt-cache pkgnames linux-headers- | sed -n 's/^linux-headers-\([0-9].*+deb[0-9]*-amd64\)$/\1/p' | sort -rV)
	[ -z "$exact" ] || gone "$1" "it has: $(for release in $all; do usable "$release" && echo "$release"; done | tr '\n' ' ')"
	for series in $(series_of "$1") $KERNEL_SERIES; do
		for release in $(printf '%s\n' "$all" | grep -E "^${series//./\\.}\.[0-9]"); do
			if usable "$release"; then got=$release; break 2; fi
		done
	done
	[ -n "$got" ] || die "$KERNEL_SUITE has no kernel that farblk supports (series: $KERNEL_SERIES)" "it has: $(echo $all); set KERNEL_RELEASE in tools/setup/versions"
	say "note: kernel $1 has left $KERNEL_SUITE; taking $got instead (tools/setup/versions names the one to prefer)"
	printf '%s' "$got"
}

gone() { die "$KERNEL_SUITE does not have the kernel $1 with its source" "$2"; }

# fetch: unpacks the packages of $release into $new. The signed image lags behind its headers, so the unsigned one is taken.
fetch() {
	local series
	series=$(series_of "$release")
	mkdir -p "$new/deb" "$new/root" "$new/boot"
	(
		cd "$new/deb"
		in_root apt-get download "linux-source-$series" "linux-headers-$release"
		in_root apt-get download "linux-binary-unsigned-$release" "linux-modules-$release" "linux-base-$release" ||
			in_root apt-get download "linux-image-$release-unsigned" || in_root apt-get download "linux-image-$release"
	)
	for deb in "$new"/deb/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$new/root"; done
	rm -rf "$new/deb"
	tar -x -C "$new" -f "$new/root/usr/src/linux-source-$series.tar.xz"
	mv "$new/linux-source-$series" "$new/linux"
	cp "$(find "$new/root" -type f \( -path "*/boot/vmlinuz-$release" -o -path "*/lib/modules/$release/vmlinuz*" \) | head -n 1)" "$new/boot/vmlinuz"
	mkdir -p "$new/modules"
	mv "$(find "$new/root" -type d -path "*/lib/modules/$release" | head -n 1)" "$new/modules/$release"
	cp "$new/root/usr/src/linux-headers-$release/.config" "$new/root/usr/src/linux-headers-$release/Module.symvers" "$new/linux/"
	rm -rf "$new/root"
	printf '%s\n' "$release" >"$new/release"
}

# prepare: the Rust metadata, made by the distribution's own rustc, which is the only one whose symbols the kernel resolves.
prepare() {
	local want have lost suffix=${release#"$(in_root make -s -C "$new/linux" kernelversion)"}
	want=$(sed -n 's/^CONFIG_RUSTC_VERSION_TEXT="\(.*\)"$/\1/p' "$new/linux/.config")
	have=$(in_root rustc --version)
	[ "$want" = "$have" ] || die "the kernel was built by '$want', the build root has '$have'" "Rust metadata of another compiler cannot be read: choose a kernel of this suite in tools/setup/versions"
	sort "$new/linux/.config" >"$new/config"
	in_root make -C "$new/linux" LOCALVERSION="$suffix" olddefconfig
	# An option that a tool's absence (pahole) switches off changes struct module, and nothing built here would load.
	lost=$(sort "$new/linux/.config" | comm -23 "$new/config" - | grep '=[ym]$' | grep -v '^CONFIG_MODULE_SIG') || true
	rm "$new/config"
	[ -z "$lost" ] || die "the build root cannot configure the kernel as it was built: $(echo $lost)" "BUILDROOT_PACKAGES in tools/setup/lib.sh lacks a tool"
	in_root make -C "$new/linux" LOCALVERSION="$suffix" -j"$(nproc)" prepare modules_prepare
	printf 'LOCALVERSION=%s\n' "$suffix" >"$new/make-args"
	[ "$(in_root make -s -C "$new/linux" LOCALVERSION="$suffix" kernelrelease)" = "$release" ] || die "the prepared tree is not $release"
}

main() {
	local release new
	need_root
	if [ -e "$dir/release" ]; then return; fi
	step "package lists of $KERNEL_SUITE" in_root apt-get update -q
	release=$(resolve "$wanted")
	new=$dir.new
	rm -rf "$new"
	step "kernel $release: packages" fetch
	step "kernel $release: Rust metadata" prepare
	mv "$new" "$dir"
}

"$(dirname "$0")/buildroot.sh"
dir=$(entry kernel "$BUILDROOT $wanted v2")
# One that is there does not wait for another one that is being prepared.
[ -e "$dir/release" ] || locked kernel main
# It may have been made when another one was taken for it.
[ -z "$exact" ] || [ "$(cat "$dir/release")" = "$wanted" ] || gone "$wanted" "it had $(cat "$dir/release") instead"
printf '%s\n' "$dir"
