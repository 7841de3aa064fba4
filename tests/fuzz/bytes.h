/* SPDX-License-Identifier: MIT */
/* What the fuzzers share: a reader that makes numbers and texts out of bytes, a folder for files,
 * and the end of a run that found something. */
#ifndef FUZZ_BYTES_H
#define FUZZ_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

/* libFuzzer calls these. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* MUST_HOLD(cond, "what is wrong with %d", n): else the input is a finding. */
#define MUST_HOLD(cond, ...)                     \
    do {                                         \
        if (cond) break;                         \
        fprintf(stderr, "%s: ", #cond);          \
        fprintf(stderr, __VA_ARGS__);            \
        fprintf(stderr, "\n");                   \
        abort(); /* libFuzzer keeps the input */ \
    } while (0)

/* ---- bytes ---- */

/* When they are used up, random ones follow, or zeros if the seed is 0. */
typedef struct bytes {
    const uint8_t *at;
    size_t left;
    uint64_t seed;
} bytes;

/* splitmix64; *state is the seed at first. */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint8_t take_byte(bytes *b)
{
    if (b->left == 0) return b->seed ? (uint8_t)(next_random(&b->seed) >> 32) : 0;
    b->left--;
    return *b->at++;
}

static inline uint64_t take_word(bytes *b, int32_t size)
{
    uint64_t word = 0;
    for (int32_t i = 0; i < size; i++) word |= (uint64_t)take_byte(b) << (8 * i);
    return word;
}

static inline bool take_flag(bytes *b)
{
    return take_byte(b) & 1;
}

/* From low to high, both inclusive; at most 256 numbers. */
static inline int64_t take_number(bytes *b, int64_t low, int64_t high)
{
    return low + take_byte(b) % (high - low + 1);
}

/* One in so many. */
static inline bool take_chance(bytes *b, int32_t one_in)
{
    return take_byte(b) % one_in == one_in - 1;
}

/* A text of up to 255 bytes in a block of exactly its size. Release with free. */
static inline char *take_text(bytes *b)
{
    const size_t wanted = take_byte(b), size = wanted < b->left ? wanted : b->left;
    char *text = malloc(size + 1);
    if (!text) abort();
    if (size > 0) memcpy(text, b->at, size);
    text[size] = '\0';
    b->at += size, b->left -= size;
    return text;
}

/* ---- files ---- */

/* A new folder, in TMPDIR if that is set; the caller removes it. */
static inline void make_folder(char *path, size_t size)
{
    const char *where = getenv("TMPDIR");
    snprintf(path, size, "%s/attocl-fuzz-XXXXXX", where && where[0] ? where : "/tmp");
    MUST_HOLD(mkdtemp(path), "%s cannot be made", path);
}

static inline void put_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    MUST_HOLD(file, "%s cannot be written", path);
    MUST_HOLD(size == 0 || fwrite(data, 1, size, file) == size, "%s cannot be written", path);
    MUST_HOLD(fclose(file) == 0, "%s cannot be written", path);
}

#endif
