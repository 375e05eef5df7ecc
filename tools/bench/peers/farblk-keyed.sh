# SPDX-License-Identifier: GPL-2.0
# A block export of farblk that wants a key, and does not protect its I/O.
# shellcheck shell=bash

. "$(dirname "${BASH_SOURCE[0]}")/farblk-sealed.sh"
object=keyed protection=none
BENCH_SECOND_DISK=/dev/ram2
