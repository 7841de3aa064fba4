/* SPDX-License-Identifier: MIT */
/* The pragmas of the CPU backend's loops: the only OpenMP directives of the library. */
#ifndef ATTO_PARALLEL_H
#define ATTO_PARALLEL_H

#define ATTO_DO_PRAGMA(text) _Pragma(#text)
#ifdef _OPENMP
#define ATTO_PARALLEL_FOR(threads) \
    ATTO_DO_PRAGMA(omp parallel for schedule(static) num_threads(threads) if ((threads) > 1))
#else
#define ATTO_PARALLEL_FOR(threads)
#endif
/* No iteration reads what another one writes; in and out may be the same block. */
#define ATTO_SIMD ATTO_DO_PRAGMA(omp simd)

#endif
