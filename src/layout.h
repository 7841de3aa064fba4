/* SPDX-License-Identifier: MIT */
/* Arithmetic on views: validity, extents, overlap, and merging of dimensions. No device needed. */
#ifndef ATTO_LAYOUT_H
#define ATTO_LAYOUT_H

#include "device.h"

/* Tensors of one op, at most. */
#define ATTO_MAX_TENSORS 24

/* Elements from the view's first to one past its last; 0 when empty. Needs a valid view. */
int64_t atto__extent(const atto_tensor *t);

/* Rank, dtype, sizes, strides and offset are legal and their products fit in 63 bits. what names
 * the tensor in the message ("act_forward: x"). */
atto_status atto__shape_check(const atto_tensor *t, const char *what);

/* And the view lies inside its buffer, which only an empty one may lack, and which is not
 * mapped. */
atto_status atto__view_check(const atto_tensor *t, const char *what);

/* Row-major without gaps, or empty. */
bool atto__view_dense(const atto_tensor *t);

/* Turns the view into a matrix [rows, columns] with unit stride along its rows, all dimensions but
 * the last merged; a vector is one row, a single element 1 x 1. False, with the view as it was,
 * where strides do not allow that. */
bool atto__view_rows(atto_tensor *t);

/* Moves a dimension: those between get out of its way. */
void atto__view_move(atto_tensor *t, int32_t from, int32_t to);

/* Without gaps and row-major but for dimension innermost, which has unit stride; or empty. */
bool atto__view_dense_by(const atto_tensor *t, int32_t innermost);

/* The channels' dimension, 0 or 1, of an image of three dimensions or more that is channels_last
 * and without gaps; the last dimension of any other view. */
int32_t atto__view_innermost(const atto_tensor *t);

/* Turns a view of spatial + 1 or spatial + 2 dimensions, spatial 1 or 2, into [batch, channels,
 * height, width]; a missing one has size 1. Strides of dimensions of size 1 become 0. */
void atto__view_image(atto_tensor *t, int32_t spatial);

/* Makes a view [batch, channels, height, width] one with unit stride along channels, or along
 * width: a stride 0 there becomes 1. False, with the view as it was, where its strides are
 * others. */
bool atto__image_unit(atto_tensor *t, bool channels_last);

/* Whether a view of spatial + 1 or spatial + 2 dimensions has unit stride along channels, and not
 * along width. */
bool atto__image_channels_last(const atto_tensor *t, int32_t spatial);

/* Of views of two dimensions or more, the last two a matrix's rows and columns, those before them
 * the batch. */

/* Unit stride along the matrix's rows or along its columns; one of size 1 has any stride. */
bool atto__view_matrices(const atto_tensor *t);

/* Gives batch the rank and the batch sizes that t and what it was before broadcast to. Rank 0 is
 * none yet. */
void atto__batch_join(atto_tensor *batch, const atto_tensor *t);

/* Gives the view batch's rank and batch sizes, with stride 0 where it has size 1 or no dimension;
 * its matrices stay what they are. */
void atto__view_batch(atto_tensor *view, const atto_tensor *batch);

/* No element is reached twice. Exact for strides that nest, otherwise on the safe side. */
bool atto__view_distinct(const atto_tensor *t);

/* The two views are one: same buffer, dtype, offset, shape and (where the size is not 1) strides.
 */
bool atto__view_same(const atto_tensor *a, const atto_tensor *b);

/* Some byte belongs to both. Exact when the strides are equal, otherwise on the safe side. */
bool atto__view_overlap(const atto_tensor *a, const atto_tensor *b);

bool atto__shape_same(const atto_tensor *a, const atto_tensor *b);

/* Gives the view full's rank and shape, with stride 0 where it has size 1 or no dimension. dims:
 * bit d for each dimension of full that the view, having fewer, lacks; 0: the first ones. False,
 * with the view as it was, where a size is neither 1 nor full's. */
bool atto__view_expand(atto_tensor *view, const atto_tensor *full, uint32_t dims);

/* Writes "[2,3,4]" into text (at least 8 * 21 + 3 bytes) and returns it. */
#define ATTO_SHAPE_TEXT 176
const char *atto__shape_text(const atto_tensor *t, char *text);

/* Merges the dimensions of n equally shaped, non-empty tensors in place (their rank, shape and
 * stride change) and describes the walk. The first tensor decides the order of dimensions; pass an
 * output there. by_index also keeps the logical index walkable. Result rank may exceed
 * ATTO_MERGED_RANK: then false is returned, and the tensors are as they were. */
bool atto__layout_merge(atto_tensor *const *tensors, int32_t n, bool by_index, bool force_wide,
                        atto__layout *out);

#endif
