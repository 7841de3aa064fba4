/* SPDX-License-Identifier: MIT */
/* IDX files, good and malformed in every way: each byte string is written, read and judged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "atto_test.h"
#include "idx.h"

/* ---- files ---- */

/* Bytes are given as text with escapes; sizeof counts the NUL that C adds. */
#define BYTES(text) text, (int)sizeof(text) - 1

typedef enum wrapping {
    PLAIN,
    GZIP,
    GZIP_CUT,  /* without its last 9 bytes: the checksums and a byte of the data */
    GZIP_CRC,  /* a wrong checksum */
    GZIP_BODY, /* compressed data of an illegal kind */
    GZIP_STUB  /* the first 5 bytes, within gzip's own header */
} wrapping;

static long slurp(const char *path, unsigned char out[4096])
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const long n = (long)fread(out, 1, 4096, file);
    fclose(file);
    return n;
}

static void spill(const char *path, const void *bytes, long n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, (size_t)n, file), n);
    fclose(file);
}

/* gzopen writes a header of 10 bytes, the data, CRC and length of 4 bytes each. */
static void write_file(const char *path, const char *bytes, int n, wrapping how)
{
    unsigned char packed[4096];
    if (how == PLAIN) {
        spill(path, bytes, n);
        return;
    }
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)n), n);
    assert_int_equal(gzclose(file), Z_OK);
    long length = slurp(path, packed);
    if (how == GZIP_CUT) length -= 9;
    if (how == GZIP_STUB) length = 5;
    if (how == GZIP_CRC) packed[length - 8] ^= 1;
    if (how == GZIP_BODY) packed[10] = 0x07; /* block type 3 does not exist */
    spill(path, packed, length);
}

/* ---- the table ---- */

#define LABELS3 "\0\0\10\1\0\0\0\3abc"
#define IMAGES  "\0\0\10\3\0\0\0\2\0\0\0\1\0\0\0\3abcdef"

static const struct idx_row {
    const char *about, *bytes;
    int n;
    wrapping how;
    const char *path;
    int rank;
    atto_status status;
    const char *words; /* in the message, separated by '|' */
    int64_t dim[3];
} rows[] = {
    { "labels", BYTES(LABELS3), PLAIN, "x.idx", 1, ATTO_OK, "", { 3, 1, 1 } },
    { "labels in gzip", BYTES(LABELS3), GZIP, "x.idx.gz", 1, ATTO_OK, "", { 3, 1, 1 } },
    { "gzip without .gz", BYTES(LABELS3), GZIP, "x.idx", 1, ATTO_OK, "", { 3, 1, 1 } },
    { "images", BYTES(IMAGES), GZIP, "x.idx.gz", 3, ATTO_OK, "", { 2, 1, 3 } },
    { "no items", BYTES("\0\0\10\1\0\0\0\0"), GZIP, "x.gz", 1, ATTO_OK, "", { 0, 1, 1 } },
    { "0 of huge",
      BYTES("\0\0\10\3\377\377\377\377\377\377\377\377\0\0\0\0"),
      PLAIN,
      "x",
      3,
      ATTO_OK,
      "",
      { 4294967295, 4294967295, 0 } },
    { "empty", BYTES(""), PLAIN, "x.idx", 1, ATTO_E_FORMAT, "x.idx|truncated|header", { 0 } },
    { "empty gz", BYTES(""), PLAIN, "x.gz", 1, ATTO_E_FORMAT, "x.gz|truncated|header", { 0 } },
    { "3 bytes", BYTES("\0\0\10"), PLAIN, "x", 1, ATTO_E_FORMAT, "truncated|header", { 0 } },
    { "cut in sizes",
      BYTES("\0\0\10\3\0\0\0\2\0\0\0"),
      GZIP,
      "x.gz",
      3,
      ATTO_E_FORMAT,
      "truncated|header",
      { 0 } },
    { "cut in data",
      BYTES("\0\0\10\1\0\0\0\3ab"),
      PLAIN,
      "x",
      1,
      ATTO_E_FORMAT,
      "truncated|data",
      { 0 } },
    { "no data",
      BYTES("\0\0\10\1\0\0\0\3"),
      GZIP,
      "x.gz",
      1,
      ATTO_E_FORMAT,
      "truncated|data",
      { 0 } },
    { "a byte more", BYTES(LABELS3 "d"), GZIP, "x.gz", 1, ATTO_E_FORMAT, "longer", { 0 } },
    { "not IDX", BYTES("\211PNG\r\n\32\n"), PLAIN, "x", 1, ATTO_E_FORMAT, "not IDX|89 50", { 0 } },
    { "second byte", BYTES("\0\1\10\1\0\0\0\3abc"), PLAIN, "x", 1, ATTO_E_FORMAT, "00 01", { 0 } },
    { "floats",
      BYTES("\0\0\15\1\0\0\0\1abcd"),
      PLAIN,
      "x",
      1,
      ATTO_E_UNSUPPORTED,
      "0x0d|0x08",
      { 0 } },
    { "rank 3 for 1",
      BYTES(IMAGES),
      PLAIN,
      "x",
      1,
      ATTO_E_FORMAT,
      "3 dimensions|expected 1",
      { 0 } },
    { "rank 0", BYTES("\0\0\10\0a"), PLAIN, "x", 1, ATTO_E_FORMAT, "0 dimensions", { 0 } },
    { "rank 255", BYTES("\0\0\10\377a"), PLAIN, "x", 1, ATTO_E_FORMAT, "255 dimensions", { 0 } },
    { "2^31 bytes",
      BYTES("\0\0\10\1\200\0\0\0"),
      PLAIN,
      "x",
      1,
      ATTO_E_UNSUPPORTED,
      "more than 2147483647",
      { 0 } },
    { "2^32 = 0 in 32 bits",
      BYTES("\0\0\10\3\0\1\0\0\0\1\0\0\0\0\0\1a"),
      PLAIN,
      "x",
      3,
      ATTO_E_UNSUPPORTED,
      "more than",
      { 0 } },
    { "2^96 bytes",
      BYTES("\0\0\10\3\377\377\377\377\377\377\377\377\377\377\377\377"),
      PLAIN,
      "x",
      3,
      ATTO_E_UNSUPPORTED,
      "more than",
      { 0 } },
    { "not gzip", BYTES(LABELS3), PLAIN, "x.gz", 1, ATTO_E_FORMAT, "x.gz|not gzip", { 0 } },
    { "gzip cut", BYTES(LABELS3), GZIP_CUT, "x.gz", 1, ATTO_E_FORMAT, "x.gz|truncated", { 0 } },
    { "gzip checksum", BYTES(LABELS3), GZIP_CRC, "x.gz", 1, ATTO_E_FORMAT, "damaged", { 0 } },
    { "gzip body", BYTES(LABELS3), GZIP_BODY, "x.gz", 1, ATTO_E_FORMAT, "damaged", { 0 } },
    { "gzip header cut", BYTES(LABELS3), GZIP_STUB, "x.gz", 1, ATTO_E_FORMAT, "truncated", { 0 } },
};

/* Every word of a '|'-separated list is in the text. */
static bool holds(const char *text, const char *words)
{
    char list[128];
    snprintf(list, sizeof list, "%s", words);
    for (char *word = strtok(list, "|"); word != NULL; word = strtok(NULL, "|"))
        if (strstr(text, word) == NULL) return false;
    return true;
}

static void check(const struct idx_row *row)
{
    char path[64];
    idx_array got;
    snprintf(path, sizeof path, "test_idx_%s", row->path);
    write_file(path, row->bytes, row->n, row->how);
    const atto_status status = idx_read(path, row->rank, &got);
    remove(path);
    if (status != row->status || (status != ATTO_OK && !holds(failure_message(), row->words)))
        fail_msg("%s: got %s: %s", row->about, atto_status_name(status), failure_message());
    if (status != ATTO_OK) {
        assert_null(got.data);
        assert_true(strncmp(failure_message(), path, strlen(path)) == 0);
        return;
    }
    const int64_t bytes = got.dim[0] > 4 ? 0 : got.dim[0] * got.dim[1] * got.dim[2];
    assert_memory_equal(got.dim, row->dim, sizeof row->dim);
    assert_non_null(got.data);
    assert_memory_equal(got.data, row->bytes + row->n - bytes, (size_t)bytes);
    idx_free(&got);
    idx_free(&got);
}

static void idx_read_answers_good_and_malformed_files(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) check(&rows[i]);
}

static void idx_read_names_files_that_it_cannot_open(void **state)
{
    (void)state;
    idx_array got;
    assert_int_equal(idx_read("/nowhere/labels.gz", 1, &got), ATTO_E_IO);
    assert_true(holds(failure_message(), "/nowhere/labels.gz|opened|No such file"));
    assert_int_equal(idx_read("/tmp", 1, &got), ATTO_E_IO); /* a folder */
    assert_true(holds(failure_message(), "/tmp|directory"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(idx_read_answers_good_and_malformed_files),
    cmocka_unit_test(idx_read_names_files_that_it_cannot_open),
};
TEST_MAIN_HOST("example.idx", tests)
