/* SPDX-License-Identifier: MIT */
/* MNIST's four files, checked against each other, and batches. */
#include "data.h"

#include <stdio.h>
#include <string.h>

#define PATH_BYTES 1024

/* The first of FOLDER/<prefix>-<kind>-ubyte[.gz] that is there. */
static atto_status find(const char *folder, const char *const *prefixes, const char *kind,
                        char path[PATH_BYTES])
{
    static const char *const endings[] = { ".gz", "" };
    for (int i = 0; prefixes[i] != NULL; i++)
        for (int e = 0; e < 2; e++) {
            snprintf(path, PATH_BYTES, "%s/%s-%s-ubyte%s", folder, prefixes[i], kind, endings[e]);
            FILE *file = fopen(path, "rb");
            if (file == NULL) continue;
            fclose(file);
            return ATTO_OK;
        }
    return failure(ATTO_E_IO, "%s: no %s-%s-ubyte.gz there", folder, prefixes[0], kind);
}

static atto_status check(const mnist_set *set, const char *images, const char *labels)
{
    const int64_t *dim = set->images.dim;
    if (dim[1] != 28 || dim[2] != 28)
        return failure(ATTO_E_FORMAT, "%s: images of %lld x %lld pixels, expected 28 x 28", images,
                       (long long)dim[1], (long long)dim[2]);
    if (set->count == 0) return failure(ATTO_E_FORMAT, "%s: no images", images);
    if (set->labels.dim[0] != set->count)
        return failure(ATTO_E_FORMAT, "%s: %lld labels, expected %lld, one per image of %s", labels,
                       (long long)set->labels.dim[0], (long long)set->count, images);
    for (int64_t i = 0; i < set->count; i++)
        if (set->labels.data[i] >= MNIST_CLASSES)
            return failure(ATTO_E_FORMAT, "%s: label %lld is %d, expected 0 to 9", labels,
                           (long long)i, set->labels.data[i]);
    return ATTO_OK;
}

static atto_status load_set(const char *folder, const char *const *prefixes, mnist_set *out)
{
    char images[PATH_BYTES], labels[PATH_BYTES];
    TRY(find(folder, prefixes, "images-idx3", images));
    TRY(find(folder, prefixes, "labels-idx1", labels));
    TRY(idx_read(images, 3, &out->images));
    TRY(idx_read(labels, 1, &out->labels));
    out->count = out->images.dim[0];
    return check(out, images, labels);
}

atto_status mnist_load(const char *folder, mnist_data *out)
{
    static const char *const train[] = { "train", "train10k", NULL };
    static const char *const test[] = { "t10k", NULL };
    memset(out, 0, sizeof *out);
    atto_status status = load_set(folder, train, &out->train);
    if (status == ATTO_OK) status = load_set(folder, test, &out->test);
    if (status != ATTO_OK) mnist_free(out);
    return status;
}

void mnist_free(mnist_data *data)
{
    idx_free(&data->train.images);
    idx_free(&data->train.labels);
    idx_free(&data->test.images);
    idx_free(&data->test.labels);
    memset(data, 0, sizeof *data);
}

int64_t mnist_batch(const mnist_set *set, const int64_t *order, int64_t first, int64_t batch,
                    float *images, int32_t *labels)
{
    int64_t n = 0;
    for (; n < batch && first + n < set->count; n++) {
        const int64_t item = order != NULL ? order[first + n] : first + n;
        const unsigned char *pixels = set->images.data + item * MNIST_PIXELS;
        for (int i = 0; i < MNIST_PIXELS; i++)
            images[n * MNIST_PIXELS + i] = ((float)pixels[i] / 255.0f - 0.1307f) / 0.3081f;
        labels[n] = set->labels.data[item];
    }
    return n;
}
