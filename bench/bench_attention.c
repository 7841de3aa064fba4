/* SPDX-License-Identifier: MIT */
/* Benchmark rows of attention. */
#include "bench.h"

const bench_row bench_attention_rows[] = { { .op = "attention" } };

const int32_t bench_attention_row_count = 0;
