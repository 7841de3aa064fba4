/* SPDX-License-Identifier: MIT */
/* A loop over threads, with a race when SEEDED is defined: scripts/tsan.sh must see the
 * difference. */
#include <stdio.h>

#define N 100000

static float x[N], last;

int main(void)
{
#pragma omp parallel for num_threads(2)
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i % 3);
#ifdef SEEDED
        last = x[i];
#endif
    }
    printf("%g\n", (double)(x[N - 1] + last));
    return 0;
}
