/* SPDX-License-Identifier: MIT */
/* Opens a BLAS, and multiplies whole numbers, for which every order of sums is exact. */
#include "backend_cpu/cblas.h"

#include <math.h>
#include <string.h>

#include "os.h"

/* ---- does it compute right? ---- */

#define LARGEST 65
static const int sizes[] = { 1, 7, LARGEST };
#define SIZES 3

static float entry(int i, int seed)
{
    return (float)((i * 37 + seed * 11) % 5) - 2.0f;
}

typedef struct product {
    int m, n, k;
    bool a_transposed, b_transposed; /* how they are stored */
    bool adds;                       /* to what c holds */
} product;

static float expected(const product *p, int i, int j)
{
    float sum = p->adds ? 3.0f : 0.0f;
    for (int r = 0; r < p->k; r++)
        sum += entry(p->a_transposed ? r * p->m + i : i * p->k + r, 1) *
               entry(p->b_transposed ? j * p->k + r : r * p->n + j, 2);
    return sum;
}

/* c, which is 3 everywhere, plus a b; or a b where c is NaN. */
static bool is_right(atto__sgemm_fn *sgemm, const product *p)
{
    static const int n = LARGEST * LARGEST;
    float a[LARGEST * LARGEST], b[LARGEST * LARGEST], c[LARGEST * LARGEST];
    for (int i = 0; i < n; i++) a[i] = entry(i, 1), b[i] = entry(i, 2), c[i] = p->adds ? 3.0f : NAN;
    sgemm(ATTO_CBLAS_ROW_MAJOR, p->a_transposed ? ATTO_CBLAS_TRANSPOSED : ATTO_CBLAS_AS_IT_IS,
          p->b_transposed ? ATTO_CBLAS_TRANSPOSED : ATTO_CBLAS_AS_IT_IS, p->m, p->n, p->k, 1.0f, a,
          p->a_transposed ? p->m : p->k, b, p->b_transposed ? p->k : p->n, p->adds ? 1.0f : 0.0f, c,
          p->n);
    for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++)
            if (c[i * p->n + j] != expected(p, i, j)) return false;
    return true;
}

static bool passes(atto__sgemm_fn *sgemm)
{
    for (int i = 0; i < SIZES * SIZES * SIZES * 8; i++) {
        const int shape = i / 8;
        const product p = { sizes[shape % SIZES],
                            sizes[shape / SIZES % SIZES],
                            sizes[shape / SIZES / SIZES],
                            i & 1,
                            (i & 2) != 0,
                            (i & 4) != 0 };
        if (!is_right(sgemm, &p)) return false;
    }
    return true;
}

/* ---- open and close ---- */

static atto_status open_named(const char *name, atto__cblas *out)
{
    out->library = atto__library_open(name);
    ATTO_REQUIRE(out->library, ATTO_E_ARGUMENT,
                 "device_open: cblas (ATTOCL_CBLAS) is '%s', which cannot be opened", name);
    void *const found = atto__library_symbol(out->library, "cblas_sgemm");
    ATTO_REQUIRE(found, ATTO_E_ARGUMENT,
                 "device_open: cblas (ATTOCL_CBLAS) is '%s', which has no cblas_sgemm", name);
    memcpy(&out->sgemm, &found, sizeof found);
    ATTO_REQUIRE(passes(out->sgemm), ATTO_E_DEVICE,
                 "device_open: cblas_sgemm of '%s' computes wrong numbers", name);
    return ATTO_OK;
}

atto_status atto__cblas_open(const atto__options *options, atto__cblas *out)
{
    memset(out, 0, sizeof *out);
    if (!options->set.cblas || !options->set.cblas[0]) return ATTO_OK;
    const atto_status status = open_named(options->set.cblas, out);
    if (status != ATTO_OK) atto__cblas_close(out);
    return status;
}

void atto__cblas_close(atto__cblas *cblas)
{
    if (cblas->library) atto__library_close(cblas->library);
    memset(cblas, 0, sizeof *cblas);
}
