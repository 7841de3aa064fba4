/* SPDX-License-Identifier: MIT */
/* probe.cl - what every kernel relies on, tried once when a device is opened.
 *
 * Work-item i stores the odd number 2049 + 2 i as a half and 257 + 2 i as a bfloat16, both half way
 * between two neighbours, so rounding to nearest even gives a multiple of 4. Work-items swap their
 * results through local memory. The address is a 64-bit sum, the check word a 64-bit product.
 *
 *   out[at + i] = half + 2^12 * bfloat16 + product, of item ATTO_PROBE_ITEMS - 1 - i
 */
#include "atto_kernel.h"

#define ATTO_PROBE_ITEMS (ATTO_WG < 64 ? ATTO_WG : 64)

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_probe)
ATTO_KERNEL void atto_probe(__global uint *out, const ulong at)
{
    __local uint swapped[ATTO_PROBE_ITEMS];
    const uint i = get_local_id(0);
    if (i < ATTO_PROBE_ITEMS) {
        const float half_way = atto_widen_f16(atto_narrow_f16(2049.0f + 2.0f * i));
        const float bfloat = atto_widen_bf16(atto_narrow_bf16(257.0f + 2.0f * i));
        const uint product = (uint)(((ulong)(i + 1) * 0x180000000UL) >> 32);
        swapped[i] = (uint)half_way + 4096 * (uint)bfloat + product;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < ATTO_PROBE_ITEMS) out[at + i] = swapped[ATTO_PROBE_ITEMS - 1 - i];
}
#endif
