/* SPDX-License-Identifier: MIT */
/* A program as an application would write it; compiled as C11, C++11 and C++20. */
#include <attocl.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    const float x[3] = { -1.0f, 0.0f, 2.0f };
    float y[3] = { 9.0f, 9.0f, 9.0f };
    atto_device *dev = NULL;
    atto_tensor t;
    struct atto_act_args a;

    memset(&a, 0, sizeof a);
    if (atto_device_open(argc > 1 ? argv[1] : "auto", NULL, &dev)) goto done;
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape1(3), &t)) goto done;
    a.x = a.y = &t;
    a.act = atto_relu();
    if (atto_tensor_write(&t, x) || atto_act_forward(dev, &a) || atto_tensor_read(&t, y)) goto done;
    atto_tensor_free(&t);
done:
    atto_device_close(dev);
    printf("attocl %s: relu gives %g %g %g %s\n", atto_version(), (double)y[0], (double)y[1],
           (double)y[2], atto_last_error());
    return !(y[0] == 0.0f && y[1] == 0.0f && y[2] == 2.0f);
}
