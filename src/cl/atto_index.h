/* SPDX-License-Identifier: MIT */
/* What kernels that read an index share: its elements, a NaN to put where it names no row, and the bit
 * that tells of it. The file that includes this has a default for ATTO_UNIT.
 *
 *   -D             default  meaning
 *   ATTO_INDEX_IN  i64      dtype of the index: i32 or i64 */
#ifndef ATTO_INDEX_H
#define ATTO_INDEX_H

#include "atto_kernel.h"

#ifndef ATTO_INDEX_IN
#define ATTO_INDEX_IN i64
#endif

typedef int atto_i32;
typedef long atto_i64;
typedef ATTO_PASTE(atto_, ATTO_INDEX_IN) index_t;

#if ATTO_UNIT == 16
typedef uint4 unit_t;
#define NAN_UNIT (uint4)(0x7fc07fc0u)
#elif ATTO_UNIT == 4
typedef uint unit_t;
#define NAN_UNIT 0x7fc07fc0u
#else
typedef ushort unit_t;
#define NAN_UNIT (ushort)0x7fc0
#endif

#define BIT_OF_INDICES 2u /* of the error word */

static inline uint is_row(long index, ulong rows)
{
    return index >= 0 && (ulong)index < rows;
}

#endif
