/* SPDX-License-Identifier: MIT */
/* Benchmark rows of linear. */
#include "bench.h"

const bench_row bench_linear_rows[] = { { 0 } };
const int32_t bench_linear_row_count = 0;
