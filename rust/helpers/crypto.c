// SPDX-License-Identifier: GPL-2.0
#include <crypto/sha2.h>
#include <linux/string.h>

__rust_helper void rust_helper_sha256_update(struct sha256_ctx *ctx, const u8 *data, size_t len)
{
	sha256_update(ctx, data, len);
}

__rust_helper void rust_helper_hmac_sha256_update(struct hmac_sha256_ctx *ctx, const u8 *data,
						  size_t len)
{
	hmac_sha256_update(ctx, data, len);
}

__rust_helper void rust_helper_memzero_explicit(void *s, size_t count)
{
	memzero_explicit(s, count);
}
