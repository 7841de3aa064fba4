/* SPDX-License-Identifier: MIT */
/* Numbers as text for files: a point before the decimals whatever the locale says. */
#ifndef EXAMPLES_NUMBER_H
#define EXAMPLES_NUMBER_H

#define NUMBER_BYTES 40

/* Shortest of fixed and scientific notation with that many significant digits (1 to 17), as %g
 * writes it in the C locale; "nan", "inf" or "-inf". 9 digits bring a float back exactly. Returns
 * out. */
const char *number_text(double value, int digits, char out[NUMBER_BYTES]);

/* The text of printf in out, where whatever is no digit, sign or exponent becomes one point. */
void number_unlocalise(char *text);

#endif
