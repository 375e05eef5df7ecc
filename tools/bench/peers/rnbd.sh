# SPDX-License-Identifier: GPL-2.0
# rnbd over rtrs. Debian does not build them, so they are built from its source of the kernel,
# untouched. Its poll queues carry no I/O (rtrs_permit_to_clt_con() knows only the others), so it
# gets none.
# shellcheck shell=bash

# rnbd_build FOLDER
rnbd_build() {
	local to=$1 new=$1.new
	[ ! -d "$to" ] || return 0
	rm -rf "$new"
	mkdir -p "$new" &&
		cp -r "$kernel/linux/drivers/infiniband/ulp/rtrs" "$kernel/linux/drivers/block/rnbd" "$new" &&
		kbuild M="$new/rtrs" CONFIG_INFINIBAND_RTRS=m CONFIG_INFINIBAND_RTRS_CLIENT=m CONFIG_INFINIBAND_RTRS_SERVER=m modules &&
		kbuild M="$new/rnbd" CONFIG_BLK_DEV_RNBD_CLIENT=m CONFIG_BLK_DEV_RNBD_SERVER=m KBUILD_EXTRA_SYMBOLS="$new/rtrs/Module.symvers" modules &&
		mv "$new" "$to"
}

peer_files() {
	local to
	to=$(entry bench-rnbd "$kernel v1")
	locked bench-rnbd rnbd_build "$to" >&2 || return
	ls "$to"/rtrs/rtrs-{core,client,server}.ko "$to"/rnbd/rnbd-{client,server}.ko
}

# insert NAME [PARAMETER=VALUE]: unless it is there already.
insert() { [ -d "/sys/module/${1//-/_}" ] || insmod "$1.ko" "${@:2}"; }

server_up() {
	modprobe rdma_cm && insert rtrs-core || return
	# As many requests as the others have on all their queues together: what it has by itself
	# does not grow with those.
	insert rtrs-server sess_queue_depth=$((128 * $(nproc))) && insert rnbd-server
}

# It listens as long as it is loaded.
server_down() { :; }

client_up() {
	local i
	modprobe rdma_cm && insert rtrs-core && insert rtrs-client && insert rnbd-client || return
	echo "sessname=bench path=ip:$1 device_path=$BENCH_DISK" >/sys/devices/virtual/rnbd-client/ctl/map_device || return
	# By default a request that preempts another one on its CPU finds no path and fails.
	echo round-robin >/sys/class/rtrs-client/bench/mpath_policy || return
	for ((i = 0; i < 100; i++)); do
		[ ! -b /dev/rnbd0 ] || { echo /dev/rnbd0; return; }
		sleep 0.05
	done
	return 1
}

client_down() { echo normal >/sys/block/rnbd0/rnbd/unmap_device; }
