/* SPDX-License-Identifier: MIT */
#include "golden.h"

#include <math.h>
#include <string.h>

static const char *open_name = "";
static int64_t room;

FILE *golden_open(const char *name, int64_t most)
{
    char path[512], version[64];
    snprintf(path, sizeof path, ATTO_GOLDEN_DIR "/%s.txt", name);
    open_name = name;
    room = most;
    FILE *file = fopen(path, "rb"); /* ftell needs it on Windows */
    if (!file) {
        print_error("cannot open %s\n", path);
        return NULL;
    }
    if (fscanf(file, "#%*[^\n] torch %63s", version) != 1 || strncmp(version, "2.11", 4) != 0)
        golden_malformed("not from PyTorch 2.11");
    return file;
}

void golden_malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/%s.txt: %s; make it again with make_golden.py", open_name, what);
}

bool golden_case_begins(FILE *file)
{
    char word[32];
    if (fscanf(file, " %31s", word) != 1) return false;
    if (strcmp(word, "case") != 0) golden_malformed(word);
    return true;
}

atto_shape golden_shape(FILE *file)
{
    atto_shape shape = { .rank = 0 };
    int rank;
    if (fscanf(file, "%d", &rank) != 1 || rank < 0 || rank > ATTO_MAX_RANK)
        golden_malformed("rank");
    for (; shape.rank < rank; shape.rank++) {
        long long size;
        if (fscanf(file, "%lld", &size) != 1) golden_malformed("shape");
        shape.dim[shape.rank] = size;
    }
    return shape;
}

int64_t golden_numel(atto_shape shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape.rank; d++) n *= shape.dim[d];
    return n;
}

void golden_numbers(FILE *file, const char *word, double *out, int64_t n)
{
    char name[32];
    if (n > room) golden_malformed("too many numbers");
    if (fscanf(file, " %31s", name) != 1 || strcmp(name, word) != 0) golden_malformed(word);
    for (int64_t i = 0; i < n; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) golden_malformed(word);
}

int64_t golden_named(FILE *file, char name[32], double *out)
{
    int count;
    if (fscanf(file, " %31s %d", name, &count) != 2 || count < 0 || count > room)
        golden_malformed("a part");
    for (int i = 0; i < count; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) golden_malformed(name);
    return count;
}

void golden_judge(int number, const char *what, const double *got, const double *want,
                  const double *terms, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (got[i] == want[i] || fabs(got[i] - want[i]) <= 64.0 * 0x1p-53 * fabs(terms[i]))
            continue;
        fail_msg("%s.txt, case %d, %s[%d]: the oracle says %.17g, PyTorch %.17g", open_name, number,
                 what, (int)i, got[i], want[i]);
    }
}

void golden_expect(const test_tensor *t, const char *op, int64_t n, const double *want,
                   const double *terms)
{
    test_judge(t, op, LAYOUT_DENSE, 0, n, want, terms, NULL);
}
