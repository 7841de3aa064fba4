/* SPDX-License-Identifier: MIT */
/* Which of several ways a call runs, where only a measurement can tell.
 *
 * A backend lists the ways that it could run a call, what it would do by itself first, and asks
 * atto__choose. That is the first one, unless another was measured to be faster: by
 * atto_device_tune or the option tune_on_first_use on this device, in an earlier process (a file
 * beside the kernel cache), or before release (tuned.c), in this order. docs/tuning.md has the
 * user's view. */
#ifndef ATTO_TUNE_H
#define ATTO_TUNE_H

#include <attocl/device.h>

/* X(CHOICE, name, numbers): a choice, the name that it has in files, and what the numbers of its
 * ways are. Where the backend makes the list stands what the sizes are. */
#define ATTO_CHOICE_TABLE(X)                                        \
    X(ELEMENTWISE, elementwise, "vectors")                          \
    X(SOFTMAX_FORWARD, softmax_forward, "lanes,items,held,group")   \
    X(SOFTMAX_BACKWARD, softmax_backward, "lanes,items,held,group") \
    X(CROSS_ENTROPY_FORWARD, cross_entropy_forward, "lanes")        \
    X(CROSS_ENTROPY_BACKWARD, cross_entropy_backward, "lanes")      \
    X(NORM_FORWARD, norm_forward, "lanes,items,group")              \
    X(NORM_AHEAD, norm_ahead, "rows")                               \
    X(NORM_BACKWARD, norm_backward, "lanes,items,group")            \
    X(NORM_GROUPS, norm_groups, "groups")                           \
    X(NORM_STAGES, norm_stages, "stages")                           \
    X(POOL_FORWARD, pool_forward, "down,group")                     \
    X(POOL_BACKWARD, pool_backward, "items,group")                  \
    X(GLU_FORWARD, glu_forward, "items,group")                      \
    X(GLU_BACKWARD, glu_backward, "items,group")                    \
    X(LOSS, loss, "items")                                          \
    X(CHANNELS, channels, "groups")                                 \
    X(GEMM, gemm, "engine,tile,slices")

typedef enum atto__choice_name {
#define X(CHOICE, name, numbers) ATTO_CHOICE_##CHOICE,
    ATTO_CHOICE_TABLE(X)
#undef X
        ATTO_CHOICE_COUNT
} atto__choice_name;

#define ATTO_WAY_NUMBERS  4
#define ATTO_CHOICE_SIZES 4
#define ATTO_MOST_WAYS    32

typedef struct atto__way {
    int32_t number[ATTO_WAY_NUMBERS]; /* those that are not needed are 0 */
    int32_t order;                    /* ways of one order give the same bits */
} atto__way;

typedef struct atto__ways {
    int32_t count;
    atto__way list[ATTO_MOST_WAYS];
} atto__ways;

/* What the best way depends on. Sizes, at least 0, are rounded up to powers of two: a measurement
 * holds for all calls alike. */
typedef struct atto__choice {
    atto__choice_name name;
    atto_dtype dtype;
    int64_t size[ATTO_CHOICE_SIZES];
} atto__choice;

/* Rows as the size of a choice: beyond so many one more makes no difference. */
static inline int64_t atto__many(int64_t rows)
{
    return rows < 8192 ? rows : 8192;
}

/* Adds a way, if there is room and it is not there yet. */
void atto__ways_add(atto__ways *ways, const atto__way *way);

/* Adds ways whose first number that is, and whose second one is the size of a work-group: 0, as the
 * device has them, and what else there is up to `most`; own is what the device has. */
void atto__ways_add_groups(atto__ways *ways, int32_t number, int32_t own, int32_t most);

/* One of ways, of which there is at least one. */
atto__way atto__choose(atto_device *dev, const atto__choice *choice, const atto__ways *ways);

/* The same, of a call that may come: it is not measured for it. */
atto__way atto__foresee(const atto_device *dev, const atto__choice *choice, const atto__ways *ways);

/* Whether that could be another than the first one: where a list is long, it need not be made
 * otherwise. */
bool atto__choice_asks(const atto_device *dev, const atto__choice *choice);

/* Whether every way of the choice will be tried. */
bool atto__choice_lists(const atto_device *dev);

/* ---- what is known ---- */

/* Of more than one source the first one counts. */
typedef enum atto__source { ATTO_FROM_DEVICE, ATTO_FROM_FILE, ATTO_FROM_BUILTIN } atto__source;

typedef struct atto__tuned {
    uint64_t key; /* of dtype and sizes */
    atto__way way;
    atto__source source;
    int32_t round; /* of the tuner, when it was measured */
} atto__tuned;

/* A choice that is to be measured, or is being measured. */
typedef struct atto__asked {
    atto__choice_name name;
    atto_dtype dtype;
    int64_t size[ATTO_CHOICE_SIZES];
    uint64_t key;
    atto__ways ways;
    int32_t taken; /* the way that it gets */
} atto__asked;

#define ATTO_MOST_ASKED 8

/* Choices of one call. */
typedef struct atto__trial {
    int32_t count;
    atto__asked asked[ATTO_MOST_ASKED];
} atto__trial;

typedef struct atto__tuner {
    struct {
        atto__tuned *list;
        int32_t count, capacity;
    } known[ATTO_CHOICE_COUNT];
    bool explicitly;       /* atto_device_tune is on */
    bool on_first_use;     /* the option */
    int32_t round;         /* how often atto_device_tune was put on */
    bool presets_only;     /* what is known does not count for a moment */
    bool changed;          /* something was measured that is not in the file */
    atto__trial open;      /* what the call that is running asks for and is to be measured */
    atto__trial *trial;    /* NULL but while a call is measured */
    double (*clock)(void); /* seconds: atto__clock, or what a test counts */
} atto__tuner;

/* "softmax_forward", and "lanes,items,held,group". */
const char *atto__choice_text(atto__choice_name name);
const char *atto__choice_numbers(atto__choice_name name);

/* The key of a choice. */
uint64_t atto__choice_key(const atto__choice *choice);

/* The entry, or NULL. */
const atto__tuned *atto__tuner_find(const atto__tuner *tuner, atto__choice_name name, uint64_t key);

/* Enters a way, in place of what is known from a later source. False when out of memory. */
bool atto__tuner_enter(atto__tuner *tuner, atto__choice_name name, const atto__tuned *entry);

/* Whether a choice is to be measured. On first use whatever is known stays: a kernel that has been
 * used is not replaced. */
bool atto__tuner_is_open(const atto__tuner *tuner, atto__choice_name name, uint64_t key);

/* tune_file.c: makes the tuner of a device that has just been opened, with what is known of it;
 * nothing is an error but ATTO_E_MEMORY. store writes what was measured; where it cannot, that is
 * logged. */
atto_status atto__tuner_open(atto_device *dev);
void atto__tuner_store(atto_device *dev);
void atto__tuner_close(atto_device *dev);

/* Enters lines "choice dtype 4 sizes 4 numbers"; whatever is no such line is skipped. */
void atto__tuner_read(atto__tuner *tuner, const char *text, atto__source source);

/* tuned.c: the same of what we have measured on that device. */
void atto__tuner_read_builtin(atto__tuner *tuner, const atto_device_info *info);

#endif
