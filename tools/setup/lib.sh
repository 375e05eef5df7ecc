# SPDX-License-Identifier: GPL-2.0
# Shared by the set-up scripts: where the cache is, how a long step shows itself, how to run inside the build root.
# shellcheck shell=bash
set -euo pipefail

SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
CACHE=${FARBLK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/farblk}
mkdir -p "$CACHE"
CACHE=$(cd "$CACHE" && pwd -P)

# shellcheck source=tools/setup/versions
. "$SRC/tools/setup/versions"

die() { printf 'error: %s\n' "$1" >&2; [ $# -lt 2 ] || printf '  hint: %s\n' "$2" >&2; exit 1; }
say() { printf '%s\n' "$*" >&2; }

# step "what" COMMAND...: runs COMMAND with its output in a log; says what runs, for how long, and how it ended.
step() {
	local what=$1 log start pid rc=0
	shift
	mkdir -p "$CACHE/log"
	log=$CACHE/log/$(printf '%s' "$what" | tr -c 'A-Za-z0-9.+\n' '-').log
	start=$SECONDS
	[ -t 2 ] || printf '  %s ...\n' "$what" >&2
	# In the background, not in a `||` list: that would switch off errexit inside COMMAND.
	"$@" >"$log" 2>&1 &
	pid=$!
	while [ -t 2 ] && kill -0 "$pid" 2>/dev/null; do
		printf '\r\033[K  %-52s %4ds  %.60s' "$what" $((SECONDS - start)) "$(tail -n 1 "$log" | tr -d '\r\033')" >&2
		sleep 1
	done
	wait "$pid" || rc=$?
	[ ! -t 2 ] || printf '\r\033[K' >&2
	if [ "$rc" -ne 0 ]; then
		tail -n 40 "$log" >&2
		die "$what: failed with exit code $rc" "the whole log is $log"
	fi
	printf '  %-52s done in %ds\n' "$what" $((SECONDS - start)) >&2
}

# cached NAME KEY: the folder of a cache entry. Its key is the hash of everything that goes into it.
entry() { printf '%s/%s-%s' "$CACHE" "$1" "$(printf '%s' "$2" | sha256sum | cut -c1-16)"; }

# locked NAME COMMAND...: one builder at a time; the others wait and then find the entry.
locked() {
	local name=$1
	shift
	(
		flock -n 9 || { say "  waiting for another run that prepares $name"; flock 9; }
		"$@"
	) 9>"$CACHE/$name.lock"
}

need_root() { [ "$(id -u)" -eq 0 ] || die "this needs root: the build root is a chroot" "sudo make ${MAKECMDGOALS:-demo}"; }

BUILDROOT_PACKAGES="gcc make bc bison flex dwarves libelf-dev libssl-dev libc6-dev kmod cpio xz-utils zstd python3 git rsync
 rustc cargo rustfmt rust-clippy rust-src bindgen libclang-dev clang lld llvm ca-certificates patch
 qemu-system-x86 e2fsprogs busybox-static iproute2 mmdebstrap procps shellcheck gdb"
# What checks need and no build: it is installed into a build root that is there already, whose name, and with it that of all
# that was built in it, stays the same.
CHECK_PACKAGES="python3-docutils zsh fish man-db libdw-dev"
# What the guests with the arm64 kernel need besides, likewise.
ARM64_PACKAGES="qemu-system-arm"
BUILDROOT=$(entry buildroot "$DEBIAN_SUITE $BUILDROOT_PACKAGES v1")

# mirror: the Debian mirror of this machine's own apt configuration.
mirror() {
	local uri=${FARBLK_MIRROR:-}
	[ -n "$uri" ] || uri=$(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
		awk '$2 ~ /^(bookworm|trixie|forky|sid|stable|oldstable|testing|unstable)$/ && $1 !~ /security/ {print $1; exit}')
	[ -n "$uri" ] || die "apt on this machine knows no Debian mirror" "name one: FARBLK_MIRROR=URL make ..."
	printf '%s' "$uri"
}

# in_root COMMAND...: runs COMMAND in the build root, with the checkout and the cache at their own paths. The mounts
# live in a mount namespace of their own and vanish with it.
in_root() {
	# shellcheck disable=SC2016
	unshare --mount --propagation private bash -c '
		set -e
		root=$1 src=$2 cache=$3 cwd=$4; shift 4
		mkdir -p "$root/$src" "$root/$cache" "$root/proc" "$root/sys" "$root/dev"
		mount --rbind /dev "$root/dev"
		mount -t proc proc "$root/proc"
		mount --rbind /sys "$root/sys"
		mount --bind /tmp "$root/tmp"
		mkdir -p "$root/$src" "$root/$cache"
		mount --bind "$src" "$root/$src"
		mount --bind "$cache" "$root/$cache"
		cat /etc/resolv.conf > "$root/etc/resolv.conf"
		# This machine may trust a certificate authority of its own.
		ca=/etc/ssl/certs/ca-certificates.crt
		[ ! -s $ca ] || mount --bind $ca "$root$ca"
		exec chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM="${TERM:-dumb}" LC_ALL=C.UTF-8 \
			CARGO_HOME="$cache/cargo" FARBLK_CACHE="$cache" FARBLK_IN_ROOT=1 \
			bash -c "cd \"\$1\" && shift && exec \"\$@\"" bash "$cwd" "$@"
	' bash "$BUILDROOT" "$SRC" "$CACHE" "$PWD" "$@"
}
