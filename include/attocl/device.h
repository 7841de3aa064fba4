/* SPDX-License-Identifier: MIT */
/* Devices: list, open, close, wait, and what a device has done so far.
 *
 * Threads: one thread at a time uses a device, its tensors and events (freeing them included); who
 * moves them between threads synchronises. Different devices work in parallel in different threads.
 * Messages (atto_last_error) belong to the thread. After fork the child may use the CPU backend's
 * devices, on one thread; OpenCL devices stay with the parent.
 *
 * Besides what its own comment lists, every op returns
 *   ATTO_E_NULL      dev, the args struct or a required tensor is NULL
 *   ATTO_E_ARGUMENT  a reserved word is not 0, an offset is negative
 *   ATTO_E_SHAPE     a rank or size is illegal, a view reaches beyond its buffer
 *   ATTO_E_DTYPE     a dtype is none of the table's
 *   ATTO_E_STRIDE    a stride is negative, an output overlaps itself, or a packed copy is needed
 *                    that the option no_hidden_copies forbids
 *   ATTO_E_ALIAS     an output overlaps another tensor, or lies between the elements of one whose
 *                    strides differ from its own
 *   ATTO_E_DEVICE    a tensor of another device
 *   ATTO_E_STATE     a tensor is mapped; a kernel's C function calls its own device
 *   ATTO_E_MEMORY    no memory for scratch
 *   ATTO_E_BUILD     its kernel cannot be built and the option no_fallback is set
 *   ATTO_E_BACKEND   the driver refused, with its own error in the message
 *   ATTO_E_LOST      the device was lost, now or earlier
 * The first eight leave every output untouched. */
#ifndef ATTOCL_DEVICE_H
#define ATTOCL_DEVICE_H

#include <stdbool.h>

#include <attocl/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Layout of the public structs; a library with another number refuses to open a device. */
#define ATTO_ABI 1

/** What a device is. "auto" prefers a higher number; docs/decisions.md tells why a CPU through OpenCL
 * comes after this library's own CPU backend. */
typedef enum atto_device_kind {
    ATTO_KIND_ACCELERATOR = 1,    /**< neither CPU nor GPU through OpenCL; never chosen by "auto" */
    ATTO_KIND_OPENCL_CPU = 2,     /**< a CPU through OpenCL */
    ATTO_KIND_CPU = 3,            /**< this library's OpenMP backend; always there */
    ATTO_KIND_INTEGRATED_GPU = 4, /**< shares memory with the host */
    ATTO_KIND_DISCRETE_GPU = 5
} atto_device_kind;

/** What is known of a device without opening it. */
typedef struct atto_device_info {
    char name[128];
    char vendor[64];
    char platform[64]; /**< OpenCL platform, or "attocl" */
    char version[64];  /**< OpenCL version of the device, or the CPU level in use */
    char driver[64];   /**< driver version */
    char backend[16];  /**< "cpu" or "opencl" */
    char problem[256]; /**< why the device cannot be used; empty when it can */
    atto_device_kind kind;
    int32_t index; /**< position in atto_device_list, as atto_device_open takes it; -1 on a device
                        opened by its backend's name, which lists no other backend */
    int32_t compute_units;    /**< multiprocessors, or threads of the CPU backend */
    int32_t max_work_group;   /**< work-items per work-group; 0 on the CPU backend */
    uint64_t memory_bytes;    /**< total */
    uint64_t max_alloc_bytes; /**< largest single buffer */
    uint64_t local_bytes;     /**< local memory per work-group; 0 on the CPU backend */
    uint64_t reserved[8];
} atto_device_info;

/** Severity of a log line. */
typedef enum atto_log_level {
    ATTO_LOG_WARNING = 1, /**< something works, but not as asked: fallback, skipped device */
    ATTO_LOG_INFO = 2     /**< device chosen, kernel built, cache used */
} atto_log_level;

/** Receives diagnostics, one line each, without newline; called from the thread that uses the
 * device. The library itself never prints. */
typedef void (*atto_log_fn)(void *data, atto_log_level level, const char *message);

/**
 * How to open a device. Zero everywhere is the default. Each field but the callbacks is mirrored by
 * an environment variable (in parentheses), which wins over the field, so that a shipped program
 * can be examined; ignore_environment turns that off.
 */
typedef struct atto_device_options {
    bool ignore_environment;
    bool no_fallback;      /**< a kernel that cannot be built is an error (ATTOCL_FALLBACK=0) */
    bool no_hidden_copies; /**< a layout that needs a packed copy is ATTO_E_STRIDE
                                    (ATTOCL_HIDDEN_COPIES=0) */
    bool no_cache;         /**< do not keep built kernels on disk (ATTOCL_CACHE=0) */
    bool portable;         /**< no vendor-specific kernels (ATTOCL_PORTABLE=1) */
    bool sync;             /**< wait and check after every call (ATTOCL_DEBUG=sync) */
    bool
        tune_on_first_use; /**< a call of which nothing is known is run in several ways when it first
                                 comes up, and the fastest stays (ATTOCL_TUNE=1); see
                                 atto_device_tune. Only ways with the same bits are tried */
    bool profile;          /**< atto_event_elapsed works (ATTOCL_PROFILE=1); costs a little */
    int32_t num_threads; /**< CPU backend: threads, 0 = as OpenMP says, but one while other programs
                                keep the processors busy. No more are started than 16 or four for
                                each processor (ATTOCL_THREADS) */
    int32_t index_bits;  /**< 64 = always use the kernels for huge tensors (ATTOCL_INDEX) */
    int32_t max_work_group;    /**< play a smaller device (ATTOCL_MAX_WORK_GROUP) */
    int32_t max_local_bytes;   /**< play a smaller device (ATTOCL_LOCAL_BYTES) */
    uint64_t max_memory_bytes; /**< refuse to hold more (ATTOCL_MEMORY) */
    const char *cpu_level;     /**< "base", "avx2", "avx512": at most this one (ATTOCL_CPU) */
    const char *cache_dir;  /**< built kernels (ATTOCL_CACHE_DIR); default $XDG_CACHE_HOME/attocl,
                                 ~/.cache/attocl or %LOCALAPPDATA%\attocl. PoCL keeps kernels by
                                 itself: there only a folder that is named is used */
    const char *kernel_dir; /**< read .cl files from here instead of the embedded ones
                                 (ATTOCL_KERNEL_DIR) */
    const char *cblas;      /**< CPU backend: a library with cblas_sgemm (32-bit integers), such as
                                 libopenblas.so.0, for products in f32; NULL or "": our own, whose
                                 bits do not depend on the number of threads. num_threads does not
                                 reach that library (ATTOCL_CBLAS) */
    const char *clblast;    /**< OpenCL: CLBlast's library, another way to multiply that tuning may
                                 choose; "0": without it (ATTOCL_CLBLAST); default libclblast.so.1 */
    atto_log_fn log;
    void *log_data;
    uint64_t reserved[4]; /**< must be 0 */
} atto_device_options;

/** Use atto_device_list, which passes the header's ATTO_ABI. */
ATTO_API atto_status atto_device_list_abi(int32_t abi, const atto_device_options *options,
                                          atto_device_info *infos, int32_t capacity,
                                          int32_t *count);

/**
 * All devices of this machine, best first within a backend's order, the CPU backend last.
 *
 * @param options   NULL for defaults
 * @param infos     out  up to capacity entries; may be NULL when capacity is 0
 * @param count     out  how many there are, also when that is more than capacity
 * Returns          ATTO_OK even without any OpenCL: the CPU backend is always there
 *                  ATTO_E_NULL, ATTO_E_ARGUMENT (capacity, bad option or variable), ATTO_E_MEMORY,
 *                  ATTO_E_VERSION (header and library differ)
 */
static inline atto_status atto_device_list(const atto_device_options *options,
                                           atto_device_info *infos, int32_t capacity,
                                           int32_t *count)
{
    return atto_device_list_abi(ATTO_ABI, options, infos, capacity, count);
}

/** Use atto_device_open, which passes the header's ATTO_ABI. */
ATTO_API atto_status atto_device_open_abi(int32_t abi, const char *name,
                                          const atto_device_options *options, atto_device **out);

/**
 * Opens a device.
 *
 * @param name     "auto" or NULL: the best device that passes a small probe (or ATTOCL_DEVICE);
 *                 "cpu": the OpenMP backend; "opencl": the best OpenCL device; a number: position
 *                 in atto_device_list; anything else: a device's name, or a part that only one
 *                 has, in any case (the words above are in lower case)
 * @param options  NULL for defaults
 * @param out      the device, NULL on failure; close it with atto_device_close
 * Returns         ATTO_E_ARGUMENT (number out of range, bad option or variable), ATTO_E_DEVICE (no
 *                 match, more than one match, or the device does not work), ATTO_E_MEMORY,
 *                 ATTO_E_VERSION (header and library differ)
 */
static inline atto_status atto_device_open(const char *name, const atto_device_options *options,
                                           atto_device **out)
{
    return atto_device_open_abi(ATTO_ABI, name, options, out);
}

/** Gives the device back. Tensors keep what they need alive, so the order of freeing is free. NULL
 * is fine. */
ATTO_API void atto_device_close(atto_device *dev);

/** Describes an open device. */
ATTO_API atto_status atto_device_describe(const atto_device *dev, atto_device_info *out);

/** Waits for everything enqueued so far. Returns ATTO_E_INDEX (once) if a kernel found bad data,
 * ATTO_E_LOST or ATTO_E_BACKEND if the device failed. */
ATTO_API atto_status atto_device_sync(atto_device *dev);

/** Counters since the device was opened, and what is held now. */
typedef struct atto_device_stats {
    uint64_t launches;       /**< kernels enqueued, or parallel loops of the CPU backend */
    uint64_t blocking_calls; /**< calls that waited for the device */
    uint64_t allocations;    /**< blocks asked from the driver or the host allocator */
    uint64_t hidden_copies;  /**< tensors packed because of their strides */
    uint64_t fallbacks;      /**< ops that ran on the CPU instead of this device */
    uint64_t kernels_built;  /**< programs compiled from source */
    uint64_t kernels_loaded; /**< programs taken from the cache on disk */
    uint64_t buffers_live;   /**< buffers that somebody holds */
    uint64_t bytes_live;     /**< their sum */
    uint64_t bytes_reserved; /**< memory held from the driver, pool included */
    uint64_t reserved[6];
} atto_device_stats;

/** Reads the counters; does not wait. */
ATTO_API atto_status atto_device_stats_get(const atto_device *dev, atto_device_stats *out);

/** Gives unused pool memory back to the driver. */
ATTO_API atto_status atto_device_trim(atto_device *dev);

/**
 * Measures calls in all the ways that this device could run them, and remembers the fastest: until
 * it is switched off again, each call whose like has not come up since is, once it has run, run
 * many times more in copies of its outputs, which takes seconds. A training step or `attocl tune`
 * brings them up. Results of the ways are compared; one that computes something else, fails or
 * cannot be built is never taken. Sizes are rounded up to powers of two.
 *
 * Switching it off writes what was found to a file beside the kernel cache (not with no_cache),
 * which later processes read when they open the device. Ways may add up in other orders: results
 * before and after differ by roundings. docs/tuning.md has more.
 *
 * @param on  true: measure from now on; false: stop, and write
 * Returns    ATTO_E_NULL, ATTO_E_LOST, ATTO_E_STATE (inside a kernel's C function); ATTO_OK on the
 *            CPU backend, which has nothing to choose
 */
ATTO_API atto_status atto_device_tune(atto_device *dev, bool on);

/** Ops, as the table lists them. */
typedef enum atto_op {
#define X(op, OP, layout, autocast, in_place, random, data_errors) ATTO_OP_##OP,
    ATTO_OP_TABLE(X)
#undef X
        ATTO_OP_COUNT
} atto_op;

/** True when the device runs the op on this dtype itself; false when the call would fall back to
 * the CPU or fail. May build a kernel. */
ATTO_API bool atto_device_supports(atto_device *dev, atto_op op, atto_dtype dtype);

/** A point in the device's order of work, for timing. */
typedef struct atto_event atto_event;

/** Marks the point after everything enqueued so far. Needs the option profile, else ATTO_E_STATE.
 * Destroy the event with atto_event_destroy. */
ATTO_API atto_status atto_event_record(atto_device *dev, atto_event **out);

/** Milliseconds of device time between two events of one device; waits for the second. */
ATTO_API atto_status atto_event_elapsed(const atto_event *start, const atto_event *end,
                                        double *out_ms);

/** NULL is fine. */
ATTO_API void atto_event_destroy(atto_event *event);

/** Host memory functions; both or none. */
typedef struct atto_allocator {
    void *(*allocate)(void *data, size_t bytes); /**< aligned as malloc; NULL = out of memory */
    void (*release)(void *data, void *pointer);  /**< never called with NULL */
    void *data;
} atto_allocator;

/**
 * Replaces malloc and free for everything the library itself allocates on the host. Allowed while
 * nothing of it is allocated: before the first device is opened or after the last is gone.
 *
 * @param allocator  NULL for malloc and free
 * Returns           ATTO_E_STATE while something is allocated, ATTO_E_NULL (a function is missing)
 */
ATTO_API atto_status atto_set_allocator(const atto_allocator *allocator);

#ifdef __cplusplus
}
#endif

#endif
