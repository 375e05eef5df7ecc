# SPDX-License-Identifier: GPL-2.0
# nvme-tcp and nvmet-tcp, without RDMA, both as they come. It has no poll queues: while it polls one
# it may sleep in a section of RCU, which the kernel complains of.
# shellcheck shell=bash

. "$(dirname "${BASH_SOURCE[0]}")/nvme.sh"
transport=tcp port=4421 without_rdma=1
BENCH_POLL=""
