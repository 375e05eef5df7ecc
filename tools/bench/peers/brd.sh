# SPDX-License-Identifier: GPL-2.0
# The block layer and fio alone: the disk that the others export.
# shellcheck shell=bash

peer_up() { echo "$BENCH_DISK"; }

peer_down() { :; }
