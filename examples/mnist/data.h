/* SPDX-License-Identifier: MIT */
/* MNIST in memory, and batches of it as a network wants them. */
#ifndef MNIST_DATA_H
#define MNIST_DATA_H

#include <stdint.h>

#include "idx.h"

enum { MNIST_PIXELS = 28 * 28, MNIST_CLASSES = 10 };

typedef struct mnist_set {
    int64_t count;
    idx_array images; /* [count, 28, 28] bytes, 0 background, 255 ink */
    idx_array labels; /* [count] bytes, 0 to 9 */
} mnist_set;

typedef struct mnist_data {
    mnist_set train, test;
} mnist_data;

/* Reads train- (else train10k-) and t10k-{images-idx3,labels-idx1}-ubyte, each with or without .gz,
 * from a folder. Release with mnist_free; *out is zeroed on failure.
 * Returns what idx_read does, and ATTO_E_FORMAT for images of another size, another number of
 * labels than images, a label above 9, or an empty set. */
atto_status mnist_load(const char *folder, mnist_data *out);

/* Zeroed data is fine. */
void mnist_free(mnist_data *data);

/* Items order[first], order[first + 1] ... of a set, at most batch of them and none behind the
 * last.
 *
 *   order   [count]          from shuffle(); NULL: as they are in the file
 *   images  [batch, 784]     out  (pixel / 255 - 0.1307) / 0.3081: mean and deviation of the
 *                                 training set's pixels become 0 and 1
 *   labels  [batch]          out
 *
 * Returns how many items were written: fewer than batch at the end, 0 behind it. */
int64_t mnist_batch(const mnist_set *set, const int64_t *order, int64_t first, int64_t batch,
                    float *images, int32_t *labels);

#endif
