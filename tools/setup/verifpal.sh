#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
# Compiles Verifpal, by which tools/model checks the model of the handshake. Prints the program.
. "$(dirname "$0")/lib.sh"

# compile: by the rustc of the build root. It is older than the one that the crate asks for: let chains are a feature there.
# To optimise across crates, as its own profile does, takes half as long again.
compile() {
	in_root env RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zcrate-attr=feature(let_chains)' CARGO_TARGET_DIR="$new/target" \
		CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_TERM_COLOR=never \
		nice cargo install --locked --ignore-rust-version --root "$new" "verifpal@$VERIFPAL_VERSION"
}

main() {
	local new=$dir.new
	[ -e "$dir" ] && return
	need_root
	rm -rf "$new"
	mkdir -p "$new"
	step "verifpal $VERIFPAL_VERSION" compile
	rm -rf "$new/target"
	mv "$new" "$dir"
}

"$(dirname "$0")/buildroot.sh"
dir=$(entry verifpal "$BUILDROOT $VERIFPAL_VERSION $(sha256sum <"$0")")
locked verifpal main
printf '%s\n' "$dir/bin/verifpal"
