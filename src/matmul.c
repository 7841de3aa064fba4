/* SPDX-License-Identifier: MIT */
/* Plans products of batches of matrices. */
#include "matmul.h"

#include <string.h>

/* ---- storage ---- */

bool atto__matrices_along_k(const atto__matrices *x, int64_t rows, int64_t k)
{
    if (k > 1 && x->stride[1] == 1) return true;
    if (rows > 1 && x->stride[0] == 1) return false;
    return k <= 1;
}

int64_t atto__matrices_pitch(const atto__matrices *x, int64_t rows, int64_t k)
{
    const bool along = atto__matrices_along_k(x, rows, k);
    const int64_t count = along ? rows : k, length = along ? k : rows;
    if (count > 1) return x->stride[along ? 0 : 1];
    return length > 1 ? length : 1;
}

static bool is_matrix(const atto__matrices *x, int64_t rows, int64_t columns)
{
    return rows <= 1 || columns <= 1 || x->stride[0] == 1 || x->stride[1] == 1;
}

/* What the backends' products take. */
static bool is_legal(const atto__product *p)
{
    return is_matrix(&p->a, p->m, p->k) && is_matrix(&p->b, p->n, p->k) &&
           (p->n <= 1 || p->c.stride[1] == 1);
}

/* ---- from views ---- */

static atto__matrices matrices_of(const atto_tensor *t, bool turned)
{
    const int32_t row = t->rank - 2, column = t->rank - 1;
    return (atto__matrices){
        .t = t, .stride = { t->stride[turned ? column : row], t->stride[turned ? row : column] }
    };
}

static void swap_sides(atto__product *p)
{
    const atto__matrices a = p->a;
    const int64_t m = p->m, stride = p->c.stride[0];
    p->a = p->b;
    p->b = a;
    p->m = p->n;
    p->n = m;
    p->c.stride[0] = p->c.stride[1];
    p->c.stride[1] = stride;
}

/* Unit stride along j; of a single column along i, since backends are good at few rows. */
static void turn_result(atto__product *p)
{
    const bool is_column = p->n == 1 && p->m > 1 && p->c.stride[0] == 1;
    if (is_column || (p->n > 1 && p->c.stride[1] != 1)) swap_sides(p);
}

static void add_dimension(atto__product *p, int32_t to, int32_t from)
{
    p->size[to] = p->c.t->shape[from];
    p->a.batch[to] = p->a.t->stride[from];
    p->b.batch[to] = p->b.t->stride[from];
    p->c.batch[to] = p->c.t->stride[from];
}

static bool is_summed(const atto_tensor *c, int32_t dim)
{
    return c->stride[dim] == 0;
}

/* Dimensions that c has, then those that it sums over. A sum of no products is one of k = 0. */
static void collect_dimensions(atto__product *p)
{
    const atto_tensor *c = p->c.t;
    bool is_empty = p->k == 0;
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t d = 0; d < c->rank - 2; d++) {
            const bool summed = is_summed(c, d);
            if (c->shape[d] == 1 || summed != (pass == 1)) continue;
            is_empty = is_empty || c->shape[d] == 0;
            add_dimension(p, p->kept + p->summed, d);
            if (summed)
                p->summed++;
            else
                p->kept++;
        }
    if (!is_empty) return;
    p->k = 0;
    p->summed = 0;
}

/* ---- folding ---- */

static void remove_dimension(atto__product *p, int32_t dim)
{
    atto__matrices *const all[] = { &p->a, &p->b, &p->c };
    const int32_t behind = p->kept + p->summed - dim - 1;
    const size_t bytes = (size_t)behind * sizeof p->size[0];
    memmove(p->size + dim, p->size + dim + 1, bytes);
    for (int32_t i = 0; i < 3; i++) memmove(all[i]->batch + dim, all[i]->batch + dim + 1, bytes);
    if (dim < p->kept)
        p->kept--;
    else
        p->summed--;
}

/* Two walks at strides x and y over size elements and count times that: are both one walk? The
 * strides become that walk's. */
static bool join(int64_t size, int64_t count, const int64_t batch[2], int64_t stride[2])
{
    const bool outside = batch[0] == stride[0] * size && batch[1] == stride[1] * size;
    const bool inside = stride[0] == batch[0] * count && stride[1] == batch[1] * count;
    if (size != 1 && !outside && !inside) return false;
    if (size == 1 || !outside) stride[0] = batch[0], stride[1] = batch[1];
    return true;
}

/* Dimension dim of the batch becomes part of *size, which x and y walk with strides number i and
 * j. */
static bool fold(atto__product *p, int32_t dim, int64_t *size, atto__matrices *x, int32_t i,
                 atto__matrices *y, int32_t j)
{
    const atto__product before = *p;
    int64_t stride[2] = { x->stride[i], y->stride[j] };
    const int64_t batch[2] = { x->batch[dim], y->batch[dim] };
    if (*size == 0 || !join(*size, p->size[dim], batch, stride)) return false;
    x->stride[i] = stride[0];
    y->stride[j] = stride[1];
    *size *= p->size[dim];
    remove_dimension(p, dim);
    if (is_legal(p)) return true;
    *p = before;
    return false;
}

static bool fold_dimension(atto__product *p, int32_t dim)
{
    if (dim >= p->kept) return fold(p, dim, &p->k, &p->a, 1, &p->b, 1);
    if (p->b.batch[dim] == 0 && fold(p, dim, &p->m, &p->a, 0, &p->c, 0)) return true;
    return p->a.batch[dim] == 0 && fold(p, dim, &p->n, &p->b, 0, &p->c, 1);
}

static bool fold_any(atto__product *p)
{
    for (int32_t d = p->kept + p->summed - 1; d >= 0; d--)
        if (fold_dimension(p, d)) return true;
    return false;
}

/* ---- merging and sorting ---- */

static bool nests(const atto__matrices *x, int32_t outer, int32_t inner, int64_t size)
{
    return x->batch[outer] == x->batch[inner] * size;
}

/* Dimension outer becomes part of inner, if they are of one kind. */
static bool merge(atto__product *p, int32_t outer, int32_t inner)
{
    const int64_t size = p->size[inner];
    if (outer == inner || (outer < p->kept) != (inner < p->kept)) return false;
    if (!nests(&p->a, outer, inner, size) || !nests(&p->b, outer, inner, size) ||
        !nests(&p->c, outer, inner, size))
        return false;
    p->size[inner] *= p->size[outer];
    remove_dimension(p, outer);
    return true;
}

static bool merge_any(atto__product *p)
{
    for (int32_t outer = 0; outer < p->kept + p->summed; outer++)
        for (int32_t inner = 0; inner < p->kept + p->summed; inner++)
            if (merge(p, outer, inner)) return true;
    return false;
}

static void swap_numbers(int64_t *list, int32_t i)
{
    const int64_t number = list[i];
    list[i] = list[i + 1];
    list[i + 1] = number;
}

/* Kept dimensions by size, the smallest first; equal ones keep their order. */
static void sort_kept(atto__product *p)
{
    for (int32_t end = p->kept - 1; end > 0; end--)
        for (int32_t d = 0; d < end; d++) {
            if (p->size[d] <= p->size[d + 1]) continue;
            swap_numbers(p->size, d);
            swap_numbers(p->a.batch, d);
            swap_numbers(p->b.batch, d);
            swap_numbers(p->c.batch, d);
        }
}

void atto__product_of(atto__product *p, const atto_tensor *a, bool a_turned, const atto_tensor *b,
                      bool b_turned, const atto_tensor *c)
{
    const int32_t rank = c->rank;
    *p = (atto__product){ .m = c->shape[rank - 2],
                          .n = c->shape[rank - 1],
                          .k = a->shape[a_turned ? rank - 2 : rank - 1],
                          .a = matrices_of(a, a_turned),
                          .b = matrices_of(b, !b_turned),
                          .c = matrices_of(c, false) };
    turn_result(p);
    collect_dimensions(p);
    while (fold_any(p) || merge_any(p)) {
    }
    sort_kept(p);
}

/* ---- indices ---- */

int64_t atto__product_count(const atto__product *p, int32_t first, int32_t count)
{
    int64_t indices = 1;
    for (int32_t d = first; d < first + count; d++) indices *= p->size[d];
    return indices;
}

bool atto__product_is_empty(const atto__product *p)
{
    return p->m == 0 || p->n == 0 || atto__product_count(p, 0, p->kept) == 0;
}

int64_t atto__product_at(const atto__product *p, const atto__matrices *x, int32_t first,
                         int32_t count, int64_t index)
{
    int64_t at = 0;
    for (int32_t d = first + count - 1; d >= first; d--) {
        at += index % p->size[d] * x->batch[d];
        index /= p->size[d];
    }
    return at;
}
