# SPDX-License-Identifier: GPL-2.0
# A sealed block export of farblk: everything on the wire is encrypted and authenticated.
# shellcheck shell=bash

. "$(dirname "${BASH_SOURCE[0]}")/farblk.sh"
object=sealed protection=seal
# Any key does.
key=farblk1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR

describe() {
	# The last role, be it the only one, is the client.
	local entry=$1/hosts/${ROLES##*,}
	echo block >"$1/kind" && echo "$BENCH_SECOND_DISK" >"$1/device_path" && echo $protection >"$1/protection" &&
		mkdir "$entry" && echo $key >"$entry/key" && echo rw >"$entry/access"
}

protect() { echo $protection >"$1/protection" && echo $key >"$1/key"; }
