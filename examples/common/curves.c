/* SPDX-License-Identifier: MIT */
/* Curves as SVG.
 *
 *     +------------------------------- title -------------------------------+
 *     |     panel title                     |     panel title               |
 *     |   +---------------------------+     |                               |
 *     | y |  plot, PLOT_W x PLOT_H    |     |                               |
 *     |   +---------------------------+     |                               |
 *     |     x ticks, x label, legend        |                               |
 */
#include "curves.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "axis.h"
#include "number.h"
#include "xml.h"

/* All lengths are pixels. */
enum {
    PLOT_W = 380,
    PLOT_H = 240,
    LEFT = 72, /* y label and y ticks */
    RIGHT = 20,
    TOP = 72,    /* both titles */
    BOTTOM = 48, /* x ticks and x label */
    LINE = 18,   /* of the legend */
    PANEL_W = LEFT + PLOT_W + RIGHT
};

/* Colours of Okabe and Ito (2008), which colour-blind eyes tell apart, each with its own dashes. */
static const struct style {
    const char *colour, *dashes;
} styles[] = {
    { "#0072b2", "none" }, { "#d55e00", "8 3" },     { "#000000", "2 3" },
    { "#009e73", "12 4" }, { "#e69f00", "8 3 2 3" }, { "#56b4e9", "4 2" },
};
#define STYLES (int)(sizeof styles / sizeof styles[0])

typedef struct frame {
    FILE *file;
    axis x, y;
} frame;

/* Pixels with one decimal, without printf's decimal point. */
static void put_pixels(FILE *file, double pixels)
{
    const long tenths = lround(10 * pixels);
    fprintf(file, "%s%ld.%ld", tenths < 0 ? "-" : "", labs(tenths) / 10, labs(tenths) % 10);
}

static double plot_x(const frame *f, double x)
{
    return LEFT + PLOT_W * axis_position(&f->x, x);
}

static double plot_y(const frame *f, double y)
{
    return TOP + PLOT_H * (1 - axis_position(&f->y, y));
}

/* Text at (x, y); attributes are SVG's. */
static void put_text(FILE *file, double x, double y, const char *attributes, const char *text)
{
    fputs("<text x=\"", file);
    put_pixels(file, x);
    fputs("\" y=\"", file);
    put_pixels(file, y);
    fprintf(file, "\" %s>", attributes);
    xml_text(file, text);
    fputs("</text>\n", file);
}

static void put_line(FILE *file, double x1, double y1, double x2, double y2)
{
    fputs("<path d=\"M", file);
    put_pixels(file, x1), fputc(' ', file), put_pixels(file, y1);
    fputc('L', file);
    put_pixels(file, x2), fputc(' ', file), put_pixels(file, y2);
    fputs("\"/>\n", file);
}

/* ---- axes ---- */

static void put_grid(const frame *f)
{
    fputs("<g stroke=\"#d0d0d0\" fill=\"none\">\n", f->file);
    for (int64_t k = f->x.first; k <= f->x.last; k++) {
        const double x = plot_x(f, (double)k * f->x.step);
        put_line(f->file, x, TOP, x, TOP + PLOT_H);
    }
    for (int64_t k = f->y.first; k <= f->y.last; k++) {
        const double y = plot_y(f, (double)k * f->y.step);
        put_line(f->file, LEFT, y, LEFT + PLOT_W, y);
    }
    fputs("</g>\n", f->file);
}

/* 12 digits hide the rounding of k * step and tell neighbours apart (axis.c: at most 1e9 steps). */
static void put_ticks(const frame *f)
{
    char text[NUMBER_BYTES];
    for (int64_t k = f->x.first; k <= f->x.last; k++) {
        const double x = (double)k * f->x.step;
        put_text(f->file, plot_x(f, x), TOP + PLOT_H + 16, "text-anchor=\"middle\"",
                 number_text(x, 12, text));
    }
    for (int64_t k = f->y.first; k <= f->y.last; k++) {
        const double y = (double)k * f->y.step;
        put_text(f->file, LEFT - 6, plot_y(f, y) + 4, "text-anchor=\"end\"",
                 number_text(y, 12, text));
    }
}

static void put_labels(const frame *f, const curve_panel *p)
{
    const double middle = LEFT + PLOT_W / 2.0;
    char turned[80];
    put_text(f->file, middle, TOP - 12, "text-anchor=\"middle\" font-weight=\"bold\"", p->title);
    put_text(f->file, middle, TOP + PLOT_H + 36, "text-anchor=\"middle\"", p->x_label);
    snprintf(turned, sizeof turned, "text-anchor=\"middle\" transform=\"rotate(-90 16 %d)\"",
             TOP + PLOT_H / 2);
    put_text(f->file, 16, TOP + PLOT_H / 2.0, turned, p->y_label);
}

/* ---- series ---- */

typedef struct pen {
    const frame *frame;
    int64_t run; /* points since the last gap */
} pen;

/* A run of one point is a line of no length, which a round cap makes a dot. */
static void pen_lift(pen *p)
{
    if (p->run == 1) fputs("h0", p->frame->file);
    p->run = 0;
}

static void pen_point(pen *p, const curve *c, int64_t i)
{
    if (!axis_drawable(c->x[i]) || !axis_drawable(c->y[i])) {
        pen_lift(p);
        return;
    }
    fputc(p->run++ == 0 ? 'M' : 'L', p->frame->file);
    put_pixels(p->frame->file, plot_x(p->frame, c->x[i]));
    fputc(' ', p->frame->file);
    put_pixels(p->frame->file, plot_y(p->frame, c->y[i]));
}

/* The lowest and the highest point of [from, to), in their order; a gap when all are gaps. */
static void pen_stretch(pen *p, const curve *c, int64_t from, int64_t to)
{
    int64_t low = -1, high = -1;
    for (int64_t i = from; i < to; i++) {
        if (!axis_drawable(c->x[i]) || !axis_drawable(c->y[i])) continue;
        if (low < 0 || c->y[i] < c->y[low]) low = i;
        if (high < 0 || c->y[i] > c->y[high]) high = i;
    }
    if (low < 0) {
        pen_lift(p);
        return;
    }
    pen_point(p, c, low < high ? low : high);
    if (low != high) pen_point(p, c, low < high ? high : low);
}

static void put_style(FILE *file, const curve *c, int index)
{
    const int place = c->style > 0 ? c->style - 1 : index;
    const struct style *s = &styles[place % STYLES];
    fprintf(file,
            "stroke=\"%s\" stroke-dasharray=\"%s\" stroke-width=\"2\" fill=\"none\" "
            "stroke-linejoin=\"round\" stroke-linecap=\"round\"",
            s->colour, s->dashes);
}

static void put_curve(const frame *f, const curve *c, int index)
{
    const int64_t stretch = c->count <= CURVES_EACH ? 1 : (c->count - 1) / (CURVES_EACH / 2) + 1;
    pen p = { f, 0 };
    fputs("<path ", f->file);
    put_style(f->file, c, index);
    fputs(" d=\"", f->file);
    for (int64_t i = 0; i < c->count; i += stretch)
        pen_stretch(&p, c, i, i + stretch < c->count ? i + stretch : c->count);
    pen_lift(&p);
    fputs("\"/>\n", f->file);
}

static void put_legend(const frame *f, const curve *c, int index)
{
    const int y = TOP + PLOT_H + BOTTOM + LINE * index;
    fprintf(f->file, "<path d=\"M%d %dh36\" ", LEFT, y + 8);
    put_style(f->file, c, index);
    fputs("/>\n", f->file);
    put_text(f->file, LEFT + 44, y + 12, "text-anchor=\"start\"", c->name);
}

/* ---- the picture ---- */

static frame frame_around(FILE *file, const curve_panel *p)
{
    axis_range x = axis_range_empty(), y = axis_range_empty();
    for (int k = 0; k < p->count; k++) {
        const curve *c = &p->curves[k];
        for (int64_t i = 0; i < c->count; i++) {
            if (!axis_drawable(c->x[i]) || !axis_drawable(c->y[i])) continue;
            axis_range_add(&x, c->x[i]);
            axis_range_add(&y, c->y[i]);
        }
    }
    return (frame){ file, axis_around(x, true), axis_around(y, false) };
}

static void put_panel(FILE *file, const curve_panel *p, int index)
{
    const frame f = frame_around(file, p);
    fprintf(file, "<g transform=\"translate(%d 0)\">\n", index * PANEL_W);
    put_grid(&f);
    fprintf(file,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" stroke=\"black\" fill=\"none\"/>\n",
            LEFT, TOP, PLOT_W, PLOT_H);
    put_ticks(&f);
    put_labels(&f, p);
    for (int k = 0; k < p->count; k++) {
        put_curve(&f, &p->curves[k], k);
        put_legend(&f, &p->curves[k], k);
    }
    fputs("</g>\n", file);
}

static void put_picture(FILE *file, const char *title, const curve_panel *panels, int count)
{
    int lines = 0;
    for (int i = 0; i < count; i++)
        if (panels[i].count > lines) lines = panels[i].count;
    const int width = PANEL_W * (count > 0 ? count : 1);
    const int height = TOP + PLOT_H + BOTTOM + LINE * lines + 12;
    fprintf(file,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            width, height, width, height, width, height);
    put_text(file, width / 2.0, 28, "text-anchor=\"middle\" font-size=\"16\"", title);
    for (int i = 0; i < count; i++) put_panel(file, &panels[i], i);
    fputs("</svg>\n", file);
}

atto_status curves_write(const char *path, const char *title, const curve_panel *panels, int count)
{
    FILE *file = fopen(path, "wb");
    bool written = file != NULL;
    if (written) {
        put_picture(file, title, panels, count);
        written = !ferror(file);
        written = fclose(file) == 0 && written;
    }
    if (written) return ATTO_OK;
    return failure(ATTO_E_IO, "%s: cannot be written: %s", path, strerror(errno));
}
