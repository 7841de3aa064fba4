/* SPDX-License-Identifier: MIT */
/* IDX through zlib, whose gzread takes plain files too. */
#include "idx.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

typedef struct source {
    const char *path;
    gzFile file;
} source;

/* Why a read came back short: the file ends early, is damaged, or cannot be read. */
static atto_status explain(const source *s, const char *part)
{
    int code;
    const char *text = gzerror(s->file, &code);
    if (code == Z_ERRNO)
        return failure(ATTO_E_IO, "%s: cannot be read: %s", s->path, strerror(errno));
    if (code == Z_MEM_ERROR) return failure(ATTO_E_MEMORY, "%s: out of memory", s->path);
    if (code == Z_OK || code == Z_BUF_ERROR || code == Z_STREAM_END)
        return failure(ATTO_E_FORMAT, "%s: truncated: it ends within its %s", s->path, part);
    return failure(ATTO_E_FORMAT, "%s: damaged gzip: %s", s->path, text);
}

/* Exactly so many bytes, at most INT32_MAX. */
static atto_status read_bytes(const source *s, const char *part, void *out, int64_t bytes)
{
    const int got = gzread(s->file, out, (unsigned)bytes);
    return got == bytes ? ATTO_OK : explain(s, part);
}

static atto_status check_gzip(const source *s)
{
    const size_t length = strlen(s->path);
    const bool named = length >= 3 && strcmp(s->path + length - 3, ".gz") == 0;
    if (named && gzdirect(s->file))
        return failure(ATTO_E_FORMAT, "%s: not gzip, though its name ends in .gz", s->path);
    return ATTO_OK;
}

static atto_status check_magic(const source *s, const unsigned char magic[4], int rank)
{
    if (magic[0] != 0 || magic[1] != 0)
        return failure(ATTO_E_FORMAT, "%s: not IDX: it starts with %02x %02x, expected 00 00",
                       s->path, magic[0], magic[1]);
    if (magic[2] != 8)
        return failure(ATTO_E_UNSUPPORTED, "%s: elements of type 0x%02x, expected 0x08 (bytes)",
                       s->path, magic[2]);
    if (magic[3] != rank)
        return failure(ATTO_E_FORMAT, "%s: %d dimensions, expected %d", s->path, magic[3], rank);
    return ATTO_OK;
}

/* The sizes, and their product in *bytes. */
static atto_status read_sizes(const source *s, idx_array *out, int64_t *bytes)
{
    *bytes = 1;
    for (int d = 0; d < out->rank; d++) {
        unsigned char b[4];
        TRY(read_bytes(s, "header", b, 4));
        out->dim[d] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
    }
    for (int d = 0; d < out->rank; d++)
        if (out->dim[d] == 0) *bytes = 0;
    for (int d = 0; d<out->rank && * bytes> 0; d++) {
        if (out->dim[d] > IDX_MAX_BYTES / *bytes)
            return failure(ATTO_E_UNSUPPORTED, "%s: its header says more than %lld bytes", s->path,
                           (long long)IDX_MAX_BYTES);
        *bytes *= out->dim[d];
    }
    return ATTO_OK;
}

/* Reading on also makes zlib compare length and checksum, which follow the data. */
static atto_status check_end(const source *s)
{
    char more;
    const int got = gzread(s->file, &more, 1);
    if (got > 0) return failure(ATTO_E_FORMAT, "%s: longer than its header says", s->path);
    int code;
    gzerror(s->file, &code);
    return got == 0 && code == Z_OK ? ATTO_OK : explain(s, "checksum");
}

static atto_status read_array(const source *s, int rank, idx_array *out)
{
    unsigned char magic[4];
    int64_t bytes;
    for (int d = 0; d < IDX_MAX_RANK; d++) out->dim[d] = 1;
    out->rank = rank;
    TRY(read_bytes(s, "header", magic, 4));
    TRY(check_gzip(s));
    TRY(check_magic(s, magic, rank));
    TRY(read_sizes(s, out, &bytes));
    out->data = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (out->data == NULL)
        return failure(ATTO_E_MEMORY, "%s: no memory for %lld bytes", s->path, (long long)bytes);
    TRY(read_bytes(s, "data", out->data, bytes));
    return check_end(s);
}

atto_status idx_read(const char *path, int rank, idx_array *out)
{
    memset(out, 0, sizeof *out);
    errno = 0;
    const source s = { path, gzopen(path, "rb") };
    if (s.file == NULL)
        return failure(errno == 0 ? ATTO_E_MEMORY : ATTO_E_IO, "%s: cannot be opened: %s", path,
                       errno == 0 ? "out of memory" : strerror(errno));
    const atto_status status = read_array(&s, rank, out);
    gzclose(s.file);
    if (status != ATTO_OK) idx_free(out);
    return status;
}

void idx_free(idx_array *array)
{
    free(array->data);
    memset(array, 0, sizeof *array);
}
