/* SPDX-License-Identifier: MIT */
/* Prints the test set of kernel variants for scripts/portability.sh, one a line: file, kernel and
 * options, separated by tabs. */
#include <stdio.h>
#include <stdlib.h>

#include "variants.h"

int main(void)
{
    const int32_t count = atto__variants(NULL, NULL, 0);
    atto__variant *variants = calloc((size_t)count, sizeof *variants);
    if (!variants) return 1;
    atto__variants(NULL, variants, count);
    for (int32_t i = 0; i < count; i++)
        printf("%s\t%s\t%s\n", variants[i].file, variants[i].kernel, variants[i].options);
    free(variants);
    return 0;
}
