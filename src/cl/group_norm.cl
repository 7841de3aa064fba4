/* SPDX-License-Identifier: MIT */
/* group_norm.cl - what group norm has beside the kernels of batch_norm.cl.
 *
 *   dx = rstd (w dy - mean over the group of w dy - n (mean of w dy n)),  n = (x - mean) rstd
 *
 *   -D  those of atto_kernel.h; ATTO_LANES of atto_reduce.h
 */
#include "atto_kernel.h"
#include "atto_reduce.h"

/* sums: [2, channels] of images' channels, dz and dz n; means: [2, stats], those of w dz and w dz n
 * over groups of per_stat channels, values in each. ATTO_LANES work-items have a group. */
ATTO_KERNEL void atto_group_norm_groups(__global const float *sums, __global float *means,
                                        __global const float *w, const ulong w_at,
                                        const ulong channels, const ulong per_stat,
                                        const ulong params, const float values)
{
    __local float2 scratch[ATTO_WG];
    const size_t stats = channels / per_stat;
    const size_t stat = get_group_id(0) * (size_t)ATTO_ROWS + get_local_id(0) / ATTO_LANES;
    float2 sum = (float2)(0.0f, 0.0f);
    for (ulong k = ATTO_LANE(); stat < stats && k < per_stat; k += ATTO_LANES) {
        const size_t c = stat * per_stat + k;
        const float scale = w ? w[w_at + c % params] : 1.0f;
        sum += scale * (float2)(sums[c], sums[channels + c]);
    }
    sum = atto_row_sum2(sum, scratch) / values;
    if (stat >= stats || ATTO_LANE() != 0) return;
    means[stat] = sum.x;
    means[stats + stat] = sum.y;
}
