/* SPDX-License-Identifier: MIT */
/* The progress line. Knows of terminals: their width, and how to redraw a line (ECMA-48). */
#include "progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <io.h>
#else
#include <sys/ioctl.h>
#include <unistd.h>
#endif

#include "clock.h"

#define BAR_MIN    8
#define BAR_MAX    40
#define LINE_BYTES 256

/* ---- the terminal ---- */

static bool can_redraw(FILE *out)
{
#if defined(_WIN32)
    return _isatty(_fileno(out));
#else
    const char *term = getenv("TERM");
    return term != NULL && *term != '\0' && strcmp(term, "dumb") != 0 && isatty(fileno(out));
#endif
}

/* Columns; 80 when the terminal does not tell. */
static int terminal_width(FILE *out)
{
#if defined(_WIN32)
    (void)out;
#else
    struct winsize size;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
#endif
    return 80;
}

/* ---- the line ---- */

static double items_per_second(const progress_view *v)
{
    return v->seconds > 0 ? (double)v->done / v->seconds : 0;
}

/* "1:02:03" or "2:03"; "-" when it is not known. */
static void put_time(double seconds, char *out, size_t bytes)
{
    const long s = seconds < 3.6e6 ? lround(seconds) : -1; /* 1000 hours; NaN is not less */
    if (s < 0)
        snprintf(out, bytes, "-");
    else if (s >= 3600)
        snprintf(out, bytes, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, bytes, "%ld:%02ld", s / 60, s % 60);
}

static double seconds_left(const progress_view *v)
{
    const double items =
        (double)(v->total - v->done) + (double)(v->epochs - v->epoch) * (double)v->total;
    return v->done > 0 ? items / items_per_second(v) : NAN;
}

/* Fraction of the epoch, 0 to 1. */
static double fraction(const progress_view *v)
{
    if (v->total <= 0) return 1;
    return fmin(1, (double)v->done / (double)v->total);
}

static void fill_bar(char *out, int cells, double part)
{
    const int full = (int)(part * cells);
    out[0] = '[';
    memset(out + 1, '#', (size_t)full);
    memset(out + 1 + full, '.', (size_t)(cells - full));
    memcpy(out + 1 + cells, "]", 2);
}

enum { FIELDS = 4, FIELD_BYTES = 48 };

/* What stands right of the bar, most important first. */
static void format_fields(const progress_view *v, char fields[FIELDS][FIELD_BYTES])
{
    char left[40];
    put_time(seconds_left(v), left, sizeof left);
    snprintf(fields[0], FIELD_BYTES, "%3.0f%%", floor(100 * fraction(v)));
    if (isnan(v->loss))
        snprintf(fields[1], FIELD_BYTES, "  loss -     ");
    else
        snprintf(fields[1], FIELD_BYTES, "  loss %-6.4g", v->loss);
    snprintf(fields[2], FIELD_BYTES, "  %.0f %s/s", items_per_second(v), v->unit);
    snprintf(fields[3], FIELD_BYTES, "  %s left", left);
}

const char *progress_format(const progress_view *v, int width, char *out, size_t bytes)
{
    char head[64], fields[FIELDS][FIELD_BYTES], bar[BAR_MAX + 4] = "", rest[LINE_BYTES] = "";
    const int limit = width < 1 ? 1 : width < (int)bytes ? width : (int)bytes; /* with the NUL */
    snprintf(head, sizeof head, "epoch %lld/%lld ", (long long)v->epoch, (long long)v->epochs);
    int room = limit - 1 - (int)strlen(head);
    format_fields(v, fields);
    for (int i = 0; i < FIELDS && (int)strlen(fields[i]) <= room; i++) {
        strcat(rest, fields[i]);
        room -= (int)strlen(fields[i]);
    }
    const int cells = room - 3; /* brackets and a blank */
    if (cells >= BAR_MIN) {
        fill_bar(bar, cells < BAR_MAX ? cells : BAR_MAX, fraction(v));
        strcat(bar, " ");
    }
    snprintf(out, (size_t)limit, "%s%s%s", head, bar, rest);
    return out;
}

/* ---- drawing ---- */

progress progress_start(FILE *out, int64_t epochs, const char *unit)
{
    const char *no_colour = getenv("NO_COLOR");
    progress p = { .out = out, .clock = clock_seconds, .live = can_redraw(out) };
    p.colour = p.live && (no_colour == NULL || *no_colour == '\0');
    p.view.epochs = epochs;
    p.view.loss = NAN;
    p.view.unit = unit;
    return p;
}

/* The line, with the filled part of the bar in green. */
static void put_line(const progress *p, const char *line)
{
    const char *from = p->colour ? strchr(line, '#') : NULL;
    if (from == NULL) {
        fputs(line, p->out);
        return;
    }
    const size_t full = strspn(from, "#");
    fprintf(p->out, "%.*s\033[32m%.*s\033[0m%s", (int)(from - line), line, (int)full, from,
            from + full);
}

static void draw(progress *p)
{
    char line[LINE_BYTES];
    progress_format(&p->view, terminal_width(p->out), line, sizeof line);
    fputc('\r', p->out);
    put_line(p, line);
    fputs("\033[K", p->out); /* erases what a longer line left */
    fflush(p->out);
    p->drawn = true;
}

void progress_epoch(progress *p, int64_t epoch, int64_t total)
{
    p->began = p->last = p->clock();
    p->view.epoch = epoch;
    p->view.done = 0;
    p->view.total = total;
    p->view.seconds = 0;
    if (p->live) draw(p);
}

void progress_step(progress *p, int64_t done, double loss)
{
    const double now = p->clock();
    p->view.done = done;
    p->view.seconds = now - p->began;
    if (!isnan(loss)) p->view.loss = loss;
    if (!p->live || now - p->last < 0.1) return;
    p->last = now;
    draw(p);
}

void progress_clear(progress *p)
{
    if (!p->drawn) return;
    fputs("\r\033[K", p->out);
    fflush(p->out);
    p->drawn = false;
}

void progress_epoch_end(progress *p, const char *metrics)
{
    progress_clear(p);
    fprintf(p->out, "epoch %lld/%lld  %s  %.0f %s/s  %.2f s\n", (long long)p->view.epoch,
            (long long)p->view.epochs, metrics, items_per_second(&p->view), p->view.unit,
            p->view.seconds);
    fflush(p->out);
}
