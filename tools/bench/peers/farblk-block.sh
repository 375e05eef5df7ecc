# SPDX-License-Identifier: GPL-2.0
# A block export of farblk.
# shellcheck shell=bash

. "$(dirname "${BASH_SOURCE[0]}")/farblk.sh"
object=block

describe() { echo block >"$1/kind" && echo "$BENCH_DISK" >"$1/device_path"; }
