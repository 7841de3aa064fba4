/* SPDX-License-Identifier: MIT */
/* The table of what is known, and the choice itself. */
#include "tune.h"

#include <string.h>

#include "alloc.h"
#include "device.h"

const char *atto__choice_text(atto__choice_name name)
{
    static const char *const texts[ATTO_CHOICE_COUNT] = {
#define X(CHOICE, name, numbers) #name,
        ATTO_CHOICE_TABLE(X)
#undef X
    };
    return texts[name];
}

const char *atto__choice_numbers(atto__choice_name name)
{
    static const char *const texts[ATTO_CHOICE_COUNT] = {
#define X(CHOICE, name, numbers) numbers,
        ATTO_CHOICE_TABLE(X)
#undef X
    };
    return texts[name];
}

/* Six bits hold the logarithm of any size. */
static uint64_t logarithm(int64_t size)
{
    uint64_t bits = 0;
    while (bits < 62 && ((int64_t)1 << bits) < size) bits++;
    return size > 0 ? bits + 1 : 0;
}

uint64_t atto__choice_key(const atto__choice *choice)
{
    uint64_t key = (uint64_t)choice->dtype;
    for (int32_t i = 0; i < ATTO_CHOICE_SIZES; i++) key = key << 6 | logarithm(choice->size[i]);
    return key;
}

static bool same_numbers(const atto__way *a, const atto__way *b)
{
    return memcmp(a->number, b->number, sizeof a->number) == 0;
}

void atto__ways_add(atto__ways *ways, const atto__way *way)
{
    for (int32_t i = 0; i < ways->count; i++)
        if (same_numbers(&ways->list[i], way)) return;
    if (ways->count < ATTO_MOST_WAYS) ways->list[ways->count++] = *way;
}

#define LEAST_GROUP 64
#define MOST_GROUP  1024

void atto__ways_add_groups(atto__ways *ways, int32_t number, int32_t own, int32_t most)
{
    atto__ways_add(ways, &(atto__way){ { number, 0 }, 0 });
    for (int32_t group = LEAST_GROUP; group <= most && group <= MOST_GROUP; group *= 2)
        if (group != own) atto__ways_add(ways, &(atto__way){ { number, group }, 0 });
}

/* ---- what is known ---- */

const atto__tuned *atto__tuner_find(const atto__tuner *tuner, atto__choice_name name, uint64_t key)
{
    for (int32_t i = 0; i < tuner->known[name].count; i++)
        if (tuner->known[name].list[i].key == key) return &tuner->known[name].list[i];
    return NULL;
}

static bool make_room(atto__tuner *tuner, atto__choice_name name)
{
    const int32_t count = tuner->known[name].count, capacity = tuner->known[name].capacity;
    if (count < capacity) return true;
    const int32_t larger = capacity > 0 ? 2 * capacity : 16;
    atto__tuned *list = atto__alloc((size_t)larger * sizeof *list);
    if (!list) return false;
    if (count > 0) memcpy(list, tuner->known[name].list, (size_t)count * sizeof *list);
    atto__free(tuner->known[name].list);
    tuner->known[name].list = list;
    tuner->known[name].capacity = larger;
    return true;
}

bool atto__tuner_enter(atto__tuner *tuner, atto__choice_name name, const atto__tuned *entry)
{
    atto__tuned *old = (atto__tuned *)atto__tuner_find(tuner, name, entry->key);
    if (old) {
        if (entry->source <= old->source) *old = *entry;
        return true;
    }
    if (!make_room(tuner, name)) return false;
    tuner->known[name].list[tuner->known[name].count++] = *entry;
    return true;
}

bool atto__tuner_is_open(const atto__tuner *tuner, atto__choice_name name, uint64_t key)
{
    const atto__tuned *known = atto__tuner_find(tuner, name, key);
    if (tuner->explicitly)
        return !known || known->source != ATTO_FROM_DEVICE || known->round != tuner->round;
    return tuner->on_first_use && !known;
}

/* ---- choosing ---- */

/* That way if it is still among them. */
static atto__way pick(const atto__ways *ways, const atto__way *way)
{
    for (int32_t i = 0; i < ways->count; i++)
        if (same_numbers(way, &ways->list[i])) return ways->list[i];
    return ways->list[0];
}

static const atto__asked *find_asked(const atto__trial *trial, const atto__choice *choice,
                                     uint64_t key)
{
    for (int32_t i = 0; i < trial->count; i++)
        if (trial->asked[i].name == choice->name && trial->asked[i].key == key)
            return &trial->asked[i];
    return NULL;
}

static void note_open(atto__trial *open, const atto__choice *choice, uint64_t key,
                      const atto__ways *ways)
{
    if (find_asked(open, choice, key) || open->count == ATTO_MOST_ASKED) return;
    atto__asked *asked = &open->asked[open->count++];
    *asked = (atto__asked){ .name = choice->name, .dtype = choice->dtype, .key = key };
    memcpy(asked->size, choice->size, sizeof asked->size);
    asked->ways = *ways;
}

bool atto__choice_lists(const atto_device *dev)
{
    const atto__tuner *tuner = dev->tuner;
    return tuner && (tuner->trial || tuner->explicitly || tuner->on_first_use);
}

/* Whether there is nothing to look up or to note. */
static bool is_idle(const atto_device *dev, atto__choice_name name)
{
    return !dev->tuner || (dev->tuner->known[name].count == 0 && !atto__choice_lists(dev));
}

bool atto__choice_asks(const atto_device *dev, const atto__choice *choice)
{
    if (is_idle(dev, choice->name)) return false;
    return atto__choice_lists(dev) ||
           atto__tuner_find(dev->tuner, choice->name, atto__choice_key(choice));
}

/* While a call is measured: what the measurement wants to see next; else what is known. */
static atto__way look_up(const atto__tuner *tuner, const atto__choice *choice, uint64_t key,
                         const atto__ways *ways)
{
    const atto__asked *asked = tuner->trial ? find_asked(tuner->trial, choice, key) : NULL;
    if (asked) return pick(ways, &asked->ways.list[asked->taken]);
    const atto__tuned *known = atto__tuner_find(tuner, choice->name, key);
    return known && !tuner->presets_only ? pick(ways, &known->way) : ways->list[0];
}

atto__way atto__foresee(const atto_device *dev, const atto__choice *choice, const atto__ways *ways)
{
    if (is_idle(dev, choice->name)) return ways->list[0];
    return look_up(dev->tuner, choice, atto__choice_key(choice), ways);
}

atto__way atto__choose(atto_device *dev, const atto__choice *choice, const atto__ways *ways)
{
    atto__tuner *tuner = dev->tuner;
    if (is_idle(dev, choice->name)) return ways->list[0];
    const uint64_t key = atto__choice_key(choice);
    const bool measures = !tuner->trial && (tuner->explicitly || tuner->on_first_use);
    if (measures && atto__tuner_is_open(tuner, choice->name, key))
        note_open(&tuner->open, choice, key, ways);
    return look_up(tuner, choice, key, ways);
}

/* ---- the user's switch ---- */

atto_status atto_device_tune(atto_device *dev, bool on)
{
    ATTO_REQUIRE(dev, ATTO_E_NULL, "device_tune: dev is NULL");
    ATTO_TRY(atto__device_check(dev));
    atto__tuner *tuner = dev->tuner;
    if (!tuner) return ATTO_OK; /* a backend without choices */
    if (on && !tuner->explicitly) tuner->round++;
    tuner->explicitly = on;
    if (!on) atto__tuner_store(dev);
    return ATTO_OK;
}
