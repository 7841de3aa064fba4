/* SPDX-License-Identifier: MIT */
/* IDX, the format of MNIST's files: a big-endian header and an array of bytes; plain or in gzip.
 *
 *     0, 0, type (8: unsigned bytes), rank;  rank sizes of 4 bytes each;  the elements, row-major
 */
#ifndef EXAMPLES_IDX_H
#define EXAMPLES_IDX_H

#include <stdint.h>

#include "failure.h"

#define IDX_MAX_RANK 4

/* More would not fit into one call of zlib; MNIST's largest file has 47 MB. */
#define IDX_MAX_BYTES INT32_MAX

typedef struct idx_array {
    int rank;
    int64_t dim[IDX_MAX_RANK]; /* sizes; 1 beyond the rank */
    unsigned char *data;       /* as many bytes as the product of the sizes; never NULL */
} idx_array;

/* Reads a whole file. Every message names the file and the problem; *out is zeroed on failure.
 *
 *   path  decompressed when it is gzip, whatever its name; a name in .gz must be gzip
 *   rank  that the file must have, 1 to IDX_MAX_RANK: 1 for labels, 3 for images
 *   out   release with idx_free
 *
 * Returns  ATTO_E_IO           cannot be opened or read
 *          ATTO_E_FORMAT       not IDX, not gzip though its name says so, truncated, damaged,
 *                              longer than its header says, or of another rank
 *          ATTO_E_UNSUPPORTED  elements are no unsigned bytes, or more than IDX_MAX_BYTES of them
 *          ATTO_E_MEMORY */
atto_status idx_read(const char *path, int rank, idx_array *out);

/* An array that was zeroed, or freed before, is fine. */
void idx_free(idx_array *array);

#endif
