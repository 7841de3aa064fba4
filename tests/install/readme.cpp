/* SPDX-License-Identifier: MIT */
/* The README's program in C++11 and C++20: options are named variables, filled field by field. */
#include <attocl.h>
#include <cstdio>
#include <cstdlib>

enum { BATCH = 64 };

static int fail()
{
    std::fprintf(stderr, "%s\n", atto_last_error());
    return 1;
}

static float uniform()
{
    return 2.0f * static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 1.0f;
}

static void draw(float *points, int32_t *labels)
{
    for (int i = 0; i < BATCH; i++) {
        const float x = uniform(), y = uniform();
        points[2 * i] = x;
        points[2 * i + 1] = y;
        labels[i] = x * x + y * y < 0.64f;
    }
}

int main()
{
    float points[2 * BATCH];
    int32_t labels[BATCH];
    double loss = 0.0;
    atto_device *dev = nullptr;
    atto_module *net = nullptr;
    atto_optimizer *opt = nullptr;
    atto_tape *tape = nullptr;
    atto_meter *mean_loss = nullptr;

    if (atto_device_open("auto", nullptr, &dev)) return fail();
    if (atto_sequential_create(dev, &net)) return fail();
    atto_linear_options hidden = {};
    hidden.act = atto_gelu();
    if (atto_sequential_linear(net, 2, 64, &hidden)) return fail();
    if (atto_sequential_linear(net, 64, 2, nullptr)) return fail();
    if (atto_adamw_create(net, 1e-2, 0.01, nullptr, &opt)) return fail();
    if (atto_tape_create(dev, &tape)) return fail();
    if (atto_meter_create(dev, &mean_loss)) return fail();
    for (int step = 1; step <= 500; step++) {
        draw(points, labels);
        const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(BATCH, 2), points);
        const atto_var t = atto_input(tape, ATTO_I32, atto_shape1(BATCH), labels);
        const atto_var e = atto_cross_entropy(tape, atto_apply(tape, net, x), t, nullptr);
        atto_meter_add(mean_loss, tape, e);
        if (atto_backward(tape, e)) return fail();
        if (atto_optimizer_step(opt, 1e-2)) return fail();
        if (atto_tape_end(tape)) return fail();
        if (step % 100 != 0) continue;
        if (atto_meter_take(mean_loss, &loss)) return fail();
        std::printf("step %3d   mean loss %.4f\n", step, loss);
    }

    atto_meter_free(mean_loss);
    atto_tape_free(tape);
    atto_optimizer_free(opt);
    atto_module_free(net);
    atto_device_close(dev);
    return loss < 0.2 ? 0 : 1; /* it learned */
}
