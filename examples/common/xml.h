/* SPDX-License-Identifier: MIT */
/* Text for XML. */
#ifndef EXAMPLES_XML_H
#define EXAMPLES_XML_H

#include <stdio.h>

/* Writes UTF-8 text for an element or an attribute: & < > " ' as entities, and '?' for each byte
 * that XML 1.0 does not allow (control characters, what is no UTF-8, U+FFFE and U+FFFF). */
void xml_text(FILE *file, const char *text);

#endif
