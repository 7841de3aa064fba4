/* SPDX-License-Identifier: MIT */
/* CLBlast, where it is installed: another way to multiply f32 matrices, which a measurement may
 * find faster (tune.h). It is opened at run time, any version that has CLBlastSgemm, and trusted
 * only after its products of known matrices were right on the device. */
#ifndef ATTO_CLBLAST_H
#define ATTO_CLBLAST_H

#include "gemm.h"

typedef struct atto__clblast atto__clblast;

/* Whether the product is one of CLBlast's, all three matrices f32 and nothing done to a while it is
 * read, and the library is there. Opens it on first call. */
bool atto__clblast_can(atto_device *dev, const atto__gemm *g);

/* out = epilogue(product). ATTO_E_UNSUPPORTED, with a warning logged, if it fails or computes wrong
 * numbers here; then atto__clblast_can says no from now on. Else only ATTO_E_LOST. */
atto_status atto__clblast_run(atto_device *dev, const atto__gemm *g);

void atto__clblast_close(atto_device *dev);

#endif
