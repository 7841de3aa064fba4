/* SPDX-License-Identifier: MIT */
/* The README's program in C++11 and C++20: options are named variables, filled field by field. */
#include <attocl.h>
#include <cstdio>

static int fail()
{
    std::fprintf(stderr, "%s\n", atto_last_error());
    return 1;
}

int main()
{
    const float input[6] = { -2.0f, -1.0f, -0.5f, 0.5f, 1.0f, 2.0f };
    float output[6], gradient[6];
    atto_device *dev = nullptr;
    atto_tensor x, y, dy, dx;

    if (atto_device_open("auto", nullptr, &dev)) return fail();
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape2(2, 3), &x)) return fail();
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape2(2, 3), &y)) return fail();
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape2(2, 3), &dy)) return fail();
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape2(2, 3), &dx)) return fail();
    if (atto_tensor_write(&x, input)) return fail();
    if (atto_tensor_fill(&dy, 1.0)) return fail();

    atto_act_args args = {};
    args.x = &x;
    args.y = &y;
    args.dy = &dy;
    args.dx = &dx;
    args.act = atto_gelu();
    args.dropout = 0.25f;
    args.rng.seed = 42;
    if (atto_act_forward(dev, &args)) return fail();
    if (atto_act_backward(dev, &args)) return fail();
    if (atto_tensor_read(&y, output)) return fail();
    if (atto_tensor_read(&dx, gradient)) return fail();
    for (int i = 0; i < 6; i++)
        std::printf("x %5.2f   y %8.5f   dy/dx %8.5f\n", static_cast<double>(input[i]),
                    static_cast<double>(output[i]), static_cast<double>(gradient[i]));

    atto_tensor_free(&x);
    atto_tensor_free(&y);
    atto_tensor_free(&dy);
    atto_tensor_free(&dx);
    atto_device_close(dev);
    return 0;
}
