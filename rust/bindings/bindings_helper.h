/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads. kernel::bindings supplies every type that rdma/ headers do not define
 * themselves.
 */
#include <crypto/chacha20poly1305.h>
#include <crypto/curve25519.h>
#include <crypto/sha2.h>
#include <crypto/utils.h>
#include <linux/crc32.h>
#include <linux/pr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>
#include <rdma/rdma_cm_ib.h>
