/* SPDX-License-Identifier: MIT */
/* The training; waits for the library's training tier. */
#include "train.h"

atto_status train(atto_device *dev, const train_options *options, const mnist_data *data,
                  const train_watch *watch)
{
    (void)dev, (void)options, (void)data, (void)watch;
    return failure(ATTO_E_UNSUPPORTED, "train: this version of attocl has no training tier yet");
}
