/* SPDX-License-Identifier: MIT */
/* linear.cl - comes with the GEMM engine. */
