# SPDX-License-Identifier: GPL-2.0
# nbd over TCP, without RDMA: the kernel's client, and nbd-server of Debian, with a connection for
# each CPU.
# shellcheck shell=bash

without_rdma=1

server_up() {
	printf '[generic]\nlistenaddr = %s\n[bench]\nexportname = %s\n' "$ADDR" $BENCH_DISK >nbd.conf &&
		nbd-server -C "$PWD/nbd.conf" -p "$PWD/nbd.pid" >&2
}

server_down() { kill "$(cat nbd.pid)"; }

client_up() {
	modprobe nbd nbds_max=1 && nbd-client "$1" -N bench -C "$(nproc)" -b 4096 /dev/nbd0 >&2 || return
	echo /dev/nbd0
}

client_down() { nbd-client -d /dev/nbd0 >&2; }
