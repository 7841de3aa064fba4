/* SPDX-License-Identifier: MIT */
/* Time that never goes backwards. */
#ifndef EXAMPLES_CLOCK_H
#define EXAMPLES_CLOCK_H

/* Seconds since some fixed moment. */
double clock_seconds(void);

#endif
