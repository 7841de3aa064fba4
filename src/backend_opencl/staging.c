/* SPDX-License-Identifier: MIT */
/* The ring of pinned memory. */
#include "staging.h"

#include <string.h>

#include "opencl.h"

#define ALIGNMENT ((size_t)256)

/* Behind the ring: where a polled word arrives. */
#define ANSWER_AT    ATTO_STAGING_BYTES
#define PINNED_BYTES (ATTO_STAGING_BYTES + ALIGNMENT)

/* Pinned memory, mapped until the device closes. Mapping waits for the queue, once. */
static void create_ring(atto_device *dev, atto__staging *ring)
{
    atto__opencl *cl = atto__opencl_of(dev);
    cl_int code;
    ring->refused = true;
    ring->buffer = atto__cl.CreateBuffer(cl->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                         PINNED_BYTES, NULL, &code);
    if (ring->buffer == NULL) return;
    dev->stats.blocking_calls++;
    ring->memory =
        atto__cl.EnqueueMapBuffer(cl->queue, ring->buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                  PINNED_BYTES, 0, NULL, NULL, &code);
    ring->refused = ring->memory == NULL;
}

void atto__staging_close(atto_device *dev)
{
    atto__opencl *cl = atto__opencl_of(dev);
    atto__staging *ring = &cl->staging;
    for (; ring->count > 0; ring->count--) {
        atto__cl.ReleaseEvent(ring->uploads[ring->first].event);
        ring->first = (ring->first + 1) % ATTO_STAGING_RECORDS;
    }
    if (ring->answer) atto__cl.ReleaseEvent(ring->answer);
    if (ring->memory) {
        atto__cl.EnqueueUnmapMemObject(cl->queue, ring->buffer, ring->memory, 0, NULL, NULL);
        atto__cl.Finish(cl->queue);
    }
    if (ring->buffer) atto__cl.ReleaseMemObject(ring->buffer);
    memset(ring, 0, sizeof *ring);
}

/* Forgets the oldest upload, which has finished. */
static void retire_oldest(atto__staging *ring)
{
    const atto__upload *oldest = &ring->uploads[ring->first];
    atto__cl.ReleaseEvent(oldest->event);
    ring->tail = oldest->end;
    ring->first = (ring->first + 1) % ATTO_STAGING_RECORDS;
    ring->count--;
    if (ring->count == 0) ring->head = ring->tail = 0;
}

static atto_status retire_finished(atto_device *dev, atto__staging *ring)
{
    while (ring->count > 0) {
        cl_int state = CL_COMPLETE;
        ATTO_CL_TRY(dev, GetEventInfo, ring->uploads[ring->first].event,
                    CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
        if (state < 0)
            return atto__device_lose(dev, "an upload failed: %s (%d)", atto__cl_error_name(state),
                                     (int)state);
        if (state != CL_COMPLETE) return ATTO_OK;
        retire_oldest(ring);
    }
    return ATTO_OK;
}

/* Finds bytes contiguous free bytes; they start at *start. An empty ring has head == tail == 0. */
static bool find_room(const atto__staging *ring, size_t bytes, size_t *start)
{
    if (ring->count == ATTO_STAGING_RECORDS) return false;
    const bool wrapped = ring->count > 0 && ring->head <= ring->tail;
    const size_t end = wrapped ? ring->tail : ATTO_STAGING_BYTES;
    *start = ring->head;
    if (bytes <= end - ring->head) return true;
    *start = 0; /* the bytes up to the end of the ring stay unused this time round */
    return !wrapped && bytes <= ring->tail;
}

static atto_status take_room(atto_device *dev, atto__staging *ring, size_t bytes, size_t *start)
{
    ATTO_TRY(retire_finished(dev, ring));
    while (!find_room(ring, bytes, start)) {
        dev->stats.blocking_calls++;
        ATTO_CL_TRY(dev, WaitForEvents, 1, &ring->uploads[ring->first].event);
        retire_oldest(ring);
    }
    return ATTO_OK;
}

static atto_status write_through_ring(atto_device *dev, atto__staging *ring, cl_mem memory,
                                      size_t offset, const void *data, size_t bytes)
{
    atto__opencl *cl = atto__opencl_of(dev);
    const size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t start;
    cl_event event;
    ATTO_TRY(take_room(dev, ring, room, &start));
    memcpy(ring->memory + start, data, bytes);
    ATTO_CL_TRY(dev, EnqueueWriteBuffer, cl->queue, memory, CL_FALSE, offset, bytes,
                ring->memory + start, 0, NULL, &event);
    ring->head = start + room;
    atto__upload *upload = &ring->uploads[(ring->first + ring->count++) % ATTO_STAGING_RECORDS];
    upload->event = event;
    upload->end = ring->head;
    return ATTO_OK;
}

atto_status atto__staging_write(atto_device *dev, cl_mem memory, size_t offset, const void *data,
                                size_t bytes)
{
    atto__opencl *cl = atto__opencl_of(dev);
    atto__staging *ring = &cl->staging;
    const bool small = bytes <= ATTO_STAGING_LIMIT;
    if (small && !ring->memory && !ring->refused) create_ring(dev, ring);
    if (small && !ring->refused) return write_through_ring(dev, ring, memory, offset, data, bytes);
    dev->stats.blocking_calls++;
    ATTO_CL_TRY(dev, EnqueueWriteBuffer, cl->queue, memory, CL_TRUE, offset, bytes, data, 0, NULL,
                NULL);
    return ATTO_OK;
}

/* ---- a word that comes back ---- */

/* Whether the read under way has arrived; its event is gone then. */
static atto_status take_answer(atto_device *dev, atto__staging *ring, bool *arrived)
{
    cl_int state = CL_COMPLETE;
    ATTO_CL_TRY(dev, GetEventInfo, ring->answer, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state,
                &state, NULL);
    if (state < 0)
        return atto__device_lose(dev, "a read failed: %s (%d)", atto__cl_error_name(state),
                                 (int)state);
    *arrived = state == CL_COMPLETE;
    if (*arrived) {
        atto__cl.ReleaseEvent(ring->answer);
        ring->answer = NULL;
    }
    return ATTO_OK;
}

atto_status atto__staging_poll(atto_device *dev, cl_mem memory, uint32_t *word)
{
    atto__opencl *cl = atto__opencl_of(dev);
    atto__staging *ring = &cl->staging;
    bool arrived = false;
    if (!word) {
        if (ring->answer) atto__cl.ReleaseEvent(ring->answer);
        ring->answer = NULL;
        return ATTO_OK;
    }
    *word = 0;
    if (!ring->memory && !ring->refused) create_ring(dev, ring);
    if (ring->refused) return ATTO_OK; /* a sync or a read will tell */
    if (ring->answer) ATTO_TRY(take_answer(dev, ring, &arrived));
    if (arrived) memcpy(word, ring->memory + ANSWER_AT, sizeof *word);
    if (*word != 0 || ring->answer) return ATTO_OK;
    ATTO_CL_TRY(dev, EnqueueReadBuffer, cl->queue, memory, CL_FALSE, 0, sizeof *word,
                ring->memory + ANSWER_AT, 0, NULL, &ring->answer);
    return ATTO_OK;
}
