/* A libcuda.so.1 without a GPU: the driver calls that rustload makes, on host memory, so that what it does with a GPU can be
 * tested on any machine. Built by the tests:
 *
 *     cc -O1 -shared -fPIC -pthread -Wl,-soname,libcuda.so.1 -o libcuda.so.1 fakecuda.c
 *
 * What makes it a test rather than a stand-in:
 *   - A stream is a thread that works through a queue. A copy reads its source at the END of a random delay, so memory that is
 *     reused before its event shows as wrong data, and whoever does not wait sees old data.
 *   - Device addresses carry bit 60: the host faults on them. Copies to other addresses are refused.
 *   - Calls that need a context fail without one, as CUDA's do; memory, streams and events belong to one.
 *   - Any call fails on request; what is alive, copied or called is counted; copies into freed memory are counted and not made.
 *
 * The environment, read by each cuInit:
 *   FAKECUDA_DEVICES=n       devices (1)
 *   FAKECUDA_INIT=code       what cuInit returns (0)
 *   FAKECUDA_FAIL=name:nth   the nth call of that function from now fails; several with commas
 *   FAKECUDA_DELAY=us        each copy takes up to that long (0)
 *   FAKECUDA_SEED=n          of the delays (1)
 *   FAKECUDA_VERSION=n       of the driver (13000)
 *   FAKECUDA_INTEGRATED=1    the devices share the machine's memory
 *   FAKECUDA_EVENTS=ignored  waiting for an event on the host returns at once: a bug on purpose
 *
 * While a stream captures a graph in global mode (fakecuda_capture), a call that could disturb the capture fails and ends it, unless
 * its thread's capture mode is relaxed.
 *
 * What tests call beside CUDA's functions is declared at the end, with the prefix fakecuda_.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef uint64_t Address;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_REGISTERED = 713,
    ALREADY_REGISTERED = 712,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
};

#define TAG (1ull << 60)
#define DEVICES 8

/* ---- counters and failures ---- */

/* Every function that can fail, in the order of the table `names`. */
#define FUNCTIONS(X)                                                                                                   \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain)                     \
    X(cuDevicePrimaryCtxRelease_v2) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuMemAlloc_v2) X(cuMemFree_v2)             \
    X(cuMemGetInfo_v2)                                                                                                 \
    X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamSynchronize)      \
    X(cuStreamWaitEvent) X(cuStreamIsCapturing) X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord)                 \
    X(cuEventQuery) X(cuEventSynchronize) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoH_v2)                                   \
    X(cuThreadExchangeStreamCaptureMode) X(cuDeviceGetPCIBusId) X(cuDeviceGetAttribute)

#define ENUM(name) F_##name,
enum { FUNCTIONS(ENUM) FUNCTION_COUNT };
#define NAME(name) #name,
static const char *const names[] = {FUNCTIONS(NAME)};
static atomic_long calls[FUNCTION_COUNT], failures[FUNCTION_COUNT];

static atomic_long live_memory, live_streams, live_events, live_registered, live_contexts;
static atomic_long copies, copied, strays, pageable, waits;
static atomic_long free_memory = (long)1 << 40;
static atomic_int ready, devices = 1, events_ignored, frees_held, integrated, version_number = 13000;
static atomic_long most_delay, seed = 1;
static _Atomic(void *) capturing;
static atomic_int capture_ended;
static atomic_uint event_flags;

static int number(const char *name) {
    for (int i = 0; i < FUNCTION_COUNT; i++)
        if (!strcmp(names[i], name)) return i;
    return -1;
}

/* Counts a call; whether it is the one that shall fail. */
static int fails(int function) {
    atomic_fetch_add(&calls[function], 1);
    long left = atomic_load(&failures[function]);
    while (left > 0)
        if (atomic_compare_exchange_weak(&failures[function], &left, left - 1)) return left == 1;
    return 0;
}

static _Thread_local struct Context *current;
/* CU_STREAM_CAPTURE_MODE_GLOBAL; 2 is relaxed. */
static _Thread_local unsigned capture_mode;

#define CALL(name, error)                                                                                              \
    if (fails(F_##name)) return error;                                                                                 \
    if (!atomic_load(&ready)) return NOT_INITIALIZED
#define IN_CONTEXT(name, error)                                                                                        \
    CALL(name, error);                                                                                                 \
    if (!current) return INVALID_CONTEXT

/* Calls that a capture in global mode forbids. */
#define UNCAPTURED                                                                                                     \
    if (atomic_load(&capturing) && capture_mode != 2) {                                                                \
        atomic_store(&capture_ended, 1);                                                                               \
        return CAPTURE_UNSUPPORTED;                                                                                    \
    }

/* ---- memory ---- */

/* An allocation on a device, or registered host memory. Freed ones stay listed, with their bytes, to catch late copies. */
typedef struct Block {
    uintptr_t start;
    size_t size;
    int freed;
    struct Block *next;
} Block;

static Block *on_device, *registered;
static pthread_mutex_t blocks = PTHREAD_MUTEX_INITIALIZER;

static Block *holder(Block *list, uintptr_t start, size_t size) {
    for (Block *block = list; block; block = block->next)
        if (start >= block->start && start + size <= block->start + block->size) return block;
    return 0;
}

/* ---- streams and events ---- */

/* One record of an event. As in CUDA, whoever waits for an event waits for the record that was the last one at the time of the call,
 * whatever becomes of the event later. */
typedef struct Record {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done;
    atomic_int users;
} Record;

typedef struct Event {
    pthread_mutex_t lock;
    Record *last;
} Event;

typedef enum { COPY, RECORD, WAIT, FILL, SNAPSHOT } Kind;

typedef struct Work {
    Kind kind;
    void *to;
    const void *from;
    size_t size;
    long delay;
    Record *record;
    int byte;
    struct Work *next;
} Work;

typedef struct Stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Work *first, *last;
    int busy, stopping;
    struct Context *context;
} Stream;

typedef struct Context {
    int device;
    long retained;
    Stream *legacy;
} Context;

static Context contexts[DEVICES];
static pthread_mutex_t legacy = PTHREAD_MUTEX_INITIALIZER;

static void pause_for(long microseconds) {
    if (microseconds <= 0) return;
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, 0);
}

static long random_delay(void) {
    long most = atomic_load(&most_delay);
    if (most <= 0) return 0;
    /* An LCG of Knuth's; the low bits are the bad ones. */
    uint64_t next = (uint64_t)atomic_fetch_add(&seed, 1) * 6364136223846793005ull + 1442695040888963407ull;
    next = (next ^ (next >> 29)) * 0xbf58476d1ce4e5b9ull;
    return (long)((next >> 33) % (uint64_t)(most + 1));
}

static void let_go(Record *record) {
    if (!record || atomic_fetch_sub(&record->users, 1) > 1) return;
    pthread_mutex_destroy(&record->lock);
    pthread_cond_destroy(&record->changed);
    free(record);
}

/* The last record of an event, to be let go; null if it was never recorded. */
static Record *last_record(Event *event) {
    pthread_mutex_lock(&event->lock);
    Record *record = event->last;
    if (record) atomic_fetch_add(&record->users, 1);
    pthread_mutex_unlock(&event->lock);
    return record;
}

static void wait_for(Record *record) {
    pthread_mutex_lock(&record->lock);
    while (!record->done) pthread_cond_wait(&record->changed, &record->lock);
    pthread_mutex_unlock(&record->lock);
}

static void copy_in(void *to, const void *from, size_t size) {
    pthread_mutex_lock(&blocks);
    Block *block = holder(on_device, (uintptr_t)to, size);
    int stray = block && block->freed;
    pthread_mutex_unlock(&blocks);
    if (stray) {
        atomic_fetch_add(&strays, 1);
        return;
    }
    memcpy(to, from, size);
}

static void perform(Work *work) {
    pause_for(work->delay);
    switch (work->kind) {
    case COPY: copy_in(work->to, work->from, work->size); break;
    case FILL: memset(work->to, work->byte, work->size); break;
    case SNAPSHOT: memcpy(work->to, work->from, work->size); break;
    case RECORD:
        pthread_mutex_lock(&work->record->lock);
        work->record->done = 1;
        pthread_cond_broadcast(&work->record->changed);
        pthread_mutex_unlock(&work->record->lock);
        break;
    case WAIT: wait_for(work->record); break;
    }
    let_go(work->record);
}

static void *run(void *argument) {
    Stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->stopping) pthread_cond_wait(&stream->changed, &stream->lock);
        Work *work = stream->first;
        if (!work) break;
        stream->first = work->next;
        if (!stream->first) stream->last = 0;
        stream->busy = 1;
        pthread_mutex_unlock(&stream->lock);
        perform(work);
        free(work);
        pthread_mutex_lock(&stream->lock);
        stream->busy = 0;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
    return 0;
}

static void enqueue(Stream *stream, Work work) {
    Work *added = malloc(sizeof work);
    *added = work;
    added->next = 0;
    pthread_mutex_lock(&stream->lock);
    if (stream->last)
        stream->last->next = added;
    else
        stream->first = added;
    stream->last = added;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void drain(Stream *stream) {
    pthread_mutex_lock(&stream->lock);
    while (stream->first || stream->busy) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

static Stream *new_stream(Context *context) {
    Stream *stream = calloc(1, sizeof *stream);
    pthread_mutex_init(&stream->lock, 0);
    pthread_cond_init(&stream->changed, 0);
    stream->context = context;
    pthread_create(&stream->thread, 0, run, stream);
    return stream;
}

/* The stream that a caller means: 0, 1 and 2 are CUDA's own names of the default streams, which are one here. */
static Stream *named(Stream *stream) {
    if ((uintptr_t)stream > 2) return stream;
    pthread_mutex_lock(&legacy);
    if (!current->legacy) current->legacy = new_stream(current);
    Stream *found = current->legacy;
    pthread_mutex_unlock(&legacy);
    return found;
}

/* Whether a stream can be used in the current context. */
static int is_foreign(Stream *stream) {
    return (uintptr_t)stream > 2 && stream->context != current;
}

/* ---- CUDA's functions ---- */

static void read_environment(void) {
    const char *text = getenv("FAKECUDA_DEVICES");
    if (text) devices = atoi(text);
    if ((text = getenv("FAKECUDA_DELAY"))) most_delay = atol(text);
    if ((text = getenv("FAKECUDA_SEED"))) seed = atol(text);
    if ((text = getenv("FAKECUDA_VERSION"))) version_number = atoi(text);
    integrated = getenv("FAKECUDA_INTEGRATED") != 0;
    if ((text = getenv("FAKECUDA_EVENTS"))) events_ignored = !strcmp(text, "ignored");
}

__attribute__((constructor)) static void read_failures(void) {
    const char *text = getenv("FAKECUDA_FAIL");
    while (text && *text) {
        char name[64];
        long nth;
        if (sscanf(text, "%63[^:]:%ld", name, &nth) == 2 && number(name) >= 0) failures[number(name)] = nth;
        text = strchr(text, ',');
        if (text) text++;
    }
}

Result cuInit(unsigned flags) {
    (void)flags;
    if (fails(F_cuInit)) return NO_DEVICE;
    read_environment();
    const char *text = getenv("FAKECUDA_INIT");
    if (text && atoi(text)) return atoi(text);
    atomic_store(&ready, 1);
    return SUCCESS;
}

Result cuDriverGetVersion(int *version) {
    if (fails(F_cuDriverGetVersion)) return INVALID_VALUE;
    *version = version_number;
    return SUCCESS;
}

Result cuDeviceGetCount(int *count) {
    CALL(cuDeviceGetCount, INVALID_VALUE);
    *count = devices;
    return SUCCESS;
}

Result cuDeviceGet(int *device, int ordinal) {
    CALL(cuDeviceGet, INVALID_VALUE);
    if (ordinal < 0 || ordinal >= devices || ordinal >= DEVICES) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALL(cuDeviceGetAttribute, INVALID_VALUE);
    if (device < 0 || device >= devices) return INVALID_DEVICE;
    /* CU_DEVICE_ATTRIBUTE_INTEGRATED, or hipDeviceAttributeIntegrated: HIP's versions have eight digits. */
    *value = attribute == (version_number < 10000000 ? 18 : 16) && integrated;
    return SUCCESS;
}

/* Addresses that no machine has. */
Result cuDeviceGetPCIBusId(char *text, int size, int device) {
    CALL(cuDeviceGetPCIBusId, INVALID_VALUE);
    if (device < 0 || device >= devices) return INVALID_DEVICE;
    return snprintf(text, size, "FFFF:FF:%02X.7", device) < size ? SUCCESS : INVALID_VALUE;
}

Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    CALL(cuDevicePrimaryCtxRetain, OUT_OF_MEMORY);
    contexts[device].device = device;
    contexts[device].retained++;
    atomic_fetch_add(&live_contexts, 1);
    *context = &contexts[device];
    return SUCCESS;
}

Result cuDevicePrimaryCtxRelease_v2(int device) {
    CALL(cuDevicePrimaryCtxRelease_v2, INVALID_CONTEXT);
    contexts[device].retained--;
    atomic_fetch_sub(&live_contexts, 1);
    return SUCCESS;
}

Result cuCtxGetCurrent(Context **context) {
    CALL(cuCtxGetCurrent, INVALID_CONTEXT);
    *context = current;
    return SUCCESS;
}

Result cuCtxSetCurrent(Context *context) {
    CALL(cuCtxSetCurrent, INVALID_CONTEXT);
    current = context;
    return SUCCESS;
}

static void list(Block **blocks_of, uintptr_t start, size_t size) {
    Block *block = calloc(1, sizeof *block);
    *block = (Block){start, size, 0, *blocks_of};
    *blocks_of = block;
}

Result cuMemAlloc_v2(Address *address, size_t size) {
    IN_CONTEXT(cuMemAlloc_v2, OUT_OF_MEMORY);
    UNCAPTURED;
    void *start;
    if (!size) return INVALID_VALUE;
    if (posix_memalign(&start, 512, size)) return OUT_OF_MEMORY;
    memset(start, 0xcd, size);
    pthread_mutex_lock(&blocks);
    list(&on_device, (uintptr_t)start, size);
    pthread_mutex_unlock(&blocks);
    atomic_fetch_add(&live_memory, 1);
    *address = (uintptr_t)start | TAG;
    return SUCCESS;
}

Result cuMemFree_v2(Address address) {
    IN_CONTEXT(cuMemFree_v2, INVALID_VALUE);
    UNCAPTURED;
    while (atomic_load(&frees_held)) pause_for(1000);
    pthread_mutex_lock(&blocks);
    Block *block = on_device;
    while (block && (block->start != (address & ~TAG) || block->freed)) block = block->next;
    if (block) block->freed = 1;
    pthread_mutex_unlock(&blocks);
    if (!block) return INVALID_VALUE;
    atomic_fetch_sub(&live_memory, 1);
    return SUCCESS;
}

Result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    IN_CONTEXT(cuMemGetInfo_v2, INVALID_VALUE);
    *free_bytes = (size_t)atomic_load(&free_memory);
    *total = (size_t)1 << 40;
    return SUCCESS;
}

Result cuMemHostRegister_v2(void *start, size_t size, unsigned flags) {
    (void)flags;
    IN_CONTEXT(cuMemHostRegister_v2, OUT_OF_MEMORY);
    UNCAPTURED;
    if (!start || !size || (uintptr_t)start % 4096) return INVALID_VALUE;
    pthread_mutex_lock(&blocks);
    list(&registered, (uintptr_t)start, size);
    pthread_mutex_unlock(&blocks);
    atomic_fetch_add(&live_registered, 1);
    return SUCCESS;
}

Result cuMemHostUnregister(void *start) {
    IN_CONTEXT(cuMemHostUnregister, NOT_REGISTERED);
    pthread_mutex_lock(&blocks);
    Block **at = &registered;
    while (*at && (*at)->start != (uintptr_t)start) at = &(*at)->next;
    Block *block = *at;
    if (block) *at = block->next;
    pthread_mutex_unlock(&blocks);
    if (!block) return NOT_REGISTERED;
    free(block);
    atomic_fetch_sub(&live_registered, 1);
    return SUCCESS;
}

Result cuStreamCreate(Stream **stream, unsigned flags) {
    (void)flags;
    IN_CONTEXT(cuStreamCreate, OUT_OF_MEMORY);
    *stream = new_stream(current);
    atomic_fetch_add(&live_streams, 1);
    return SUCCESS;
}

/* As CUDA's, it returns at once: what is enqueued is still done. */
Result cuStreamDestroy_v2(Stream *stream) {
    IN_CONTEXT(cuStreamDestroy_v2, INVALID_CONTEXT);
    pthread_detach(stream->thread);
    pthread_mutex_lock(&stream->lock);
    stream->stopping = 1;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    atomic_fetch_sub(&live_streams, 1);
    return SUCCESS;
}

Result cuStreamSynchronize(Stream *stream) {
    IN_CONTEXT(cuStreamSynchronize, LAUNCH_FAILED);
    UNCAPTURED;
    drain(named(stream));
    return SUCCESS;
}

Result cuStreamIsCapturing(Stream *stream, int *status) {
    IN_CONTEXT(cuStreamIsCapturing, INVALID_VALUE);
    const char *text = getenv("FAKECUDA_CAPTURING");
    void *captured = atomic_load(&capturing);
    *status = (text && *text == '1') || (captured && captured == stream);
    return SUCCESS;
}

Result cuThreadExchangeStreamCaptureMode(unsigned *mode) {
    CALL(cuThreadExchangeStreamCaptureMode, INVALID_VALUE);
    unsigned before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}

Result cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    (void)flags;
    IN_CONTEXT(cuStreamWaitEvent, INVALID_VALUE);
    Record *record = last_record(event);
    atomic_fetch_add(&waits, 1);
    if (record) enqueue(named(stream), (Work){.kind = WAIT, .record = record});
    return SUCCESS;
}

Result cuEventCreate(Event **event, unsigned flags) {
    IN_CONTEXT(cuEventCreate, OUT_OF_MEMORY);
    atomic_fetch_or(&event_flags, flags);
    Event *made = calloc(1, sizeof *made);
    pthread_mutex_init(&made->lock, 0);
    atomic_fetch_add(&live_events, 1);
    *event = made;
    return SUCCESS;
}

Result cuEventDestroy_v2(Event *event) {
    IN_CONTEXT(cuEventDestroy_v2, INVALID_VALUE);
    let_go(event->last);
    pthread_mutex_destroy(&event->lock);
    free(event);
    atomic_fetch_sub(&live_events, 1);
    return SUCCESS;
}

Result cuEventRecord(Event *event, Stream *stream) {
    IN_CONTEXT(cuEventRecord, INVALID_VALUE);
    if (is_foreign(stream)) return INVALID_HANDLE;
    Record *record = calloc(1, sizeof *record);
    pthread_mutex_init(&record->lock, 0);
    pthread_cond_init(&record->changed, 0);
    /* The event's and the stream's. */
    atomic_store(&record->users, 2);
    pthread_mutex_lock(&event->lock);
    Record *before = event->last;
    event->last = record;
    pthread_mutex_unlock(&event->lock);
    let_go(before);
    enqueue(named(stream), (Work){.kind = RECORD, .record = record});
    return SUCCESS;
}

Result cuEventQuery(Event *event) {
    IN_CONTEXT(cuEventQuery, LAUNCH_FAILED);
    UNCAPTURED;
    if (events_ignored) return SUCCESS;
    Record *record = last_record(event);
    if (!record) return SUCCESS;
    pthread_mutex_lock(&record->lock);
    int done = record->done;
    pthread_mutex_unlock(&record->lock);
    let_go(record);
    return done ? SUCCESS : NOT_READY;
}

Result cuEventSynchronize(Event *event) {
    IN_CONTEXT(cuEventSynchronize, LAUNCH_FAILED);
    UNCAPTURED;
    if (events_ignored) return SUCCESS;
    Record *record = last_record(event);
    if (record) wait_for(record);
    let_go(record);
    return SUCCESS;
}

Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, Stream *stream) {
    IN_CONTEXT(cuMemcpyHtoDAsync_v2, LAUNCH_FAILED);
    if (is_foreign(stream)) return INVALID_HANDLE;
    if (!(to & TAG) || !size) return INVALID_VALUE;
    pthread_mutex_lock(&blocks);
    Block *pinned = holder(registered, (uintptr_t)from, size);
    Block *block = holder(on_device, (uintptr_t)(to & ~TAG), 1);
    int over = block && !block->freed && (to & ~TAG) + size > block->start + block->size;
    pthread_mutex_unlock(&blocks);
    if (over) return INVALID_VALUE;
    if (!pinned) atomic_fetch_add(&pageable, 1);
    atomic_fetch_add(&copies, 1);
    atomic_fetch_add(&copied, (long)size);
    Work work = {.kind = COPY, .to = (void *)(uintptr_t)(to & ~TAG), .from = from, .size = size, .delay = random_delay()};
    enqueue(named(stream), work);
    return SUCCESS;
}

/* Waits for no stream: whoever reads too early gets what is there. */
Result cuMemcpyDtoH_v2(void *to, Address from, size_t size) {
    IN_CONTEXT(cuMemcpyDtoH_v2, LAUNCH_FAILED);
    UNCAPTURED;
    if (!(from & TAG)) return INVALID_VALUE;
    memcpy(to, (const void *)(uintptr_t)(from & ~TAG), size);
    return SUCCESS;
}

Result cuGetErrorName(Result error, const char **name) {
    switch (error) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case NOT_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"; break;
    case ALREADY_REGISTERED: *name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"; break;
    case NOT_READY: *name = "CUDA_ERROR_NOT_READY"; break;
    case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: *name = 0; return INVALID_VALUE;
    }
    return SUCCESS;
}

/* ---- for tests ---- */

/* How many of something are alive (memory, streams, events, registered, contexts) or happened (copies, bytes, waits,
 * stray copies into freed memory, pageable copies); else the calls of the function of that name, or -1. */
long fakecuda_count(const char *what) {
    struct { const char *name; atomic_long *value; } counters[] = {
        {"memory", &live_memory}, {"streams", &live_streams}, {"events", &live_events}, {"registered", &live_registered},
        {"contexts", &live_contexts}, {"copies", &copies}, {"bytes", &copied}, {"waits", &waits}, {"stray", &strays},
        {"pageable", &pageable},
    };
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        if (!strcmp(counters[i].name, what)) return atomic_load(counters[i].value);
    return number(what) < 0 ? -1 : atomic_load(&calls[number(what)]);
}

/* The nth name of a function that can fail, or null. */
const char *fakecuda_function(int nth) { return nth >= 0 && nth < FUNCTION_COUNT ? names[nth] : 0; }

/* From now on, the nth call of that function fails once; 0 for none. */
void fakecuda_fail(const char *name, long nth) {
    if (number(name) >= 0) atomic_store(&failures[number(name)], nth);
}

void fakecuda_delay(long microseconds) { atomic_store(&most_delay, microseconds); }

/* What cuMemGetInfo says is free. */
void fakecuda_free_memory(long nbytes) { atomic_store(&free_memory, nbytes); }

/* cuMemFree waits, as for work of the GPU, until it is no longer held. */
void fakecuda_hold_frees(int held) { atomic_store(&frees_held, held); }

void fakecuda_ignore_events(int ignored) { atomic_store(&events_ignored, ignored); }

/* Begins the capture of a stream in global mode, or ends it (null); returns whether the last one was disturbed. */
int fakecuda_capture(Stream *stream) {
    atomic_store(&capturing, stream);
    return atomic_exchange(&capture_ended, 0);
}

/* The flags of all events that were created. */
unsigned fakecuda_event_flags(void) { return atomic_load(&event_flags); }

/* The calling thread's capture mode. */
unsigned fakecuda_capture_mode(void) { return capture_mode; }

/* Enqueues what a kernel would do: after a delay, sets bytes of device memory. */
Result fakecuda_fill(Stream *stream, Address to, int byte, size_t size, long delay) {
    if (!current) return INVALID_CONTEXT;
    Work work = {.kind = FILL, .to = (void *)(uintptr_t)(to & ~TAG), .size = size, .delay = delay, .byte = byte};
    enqueue(named(stream), work);
    return SUCCESS;
}

/* Enqueues what a consumer would do: copies device memory to the host. */
Result fakecuda_snapshot(Stream *stream, void *to, Address from, size_t size) {
    if (!current) return INVALID_CONTEXT;
    enqueue(named(stream), (Work){.kind = SNAPSHOT, .to = to, .from = (void *)(uintptr_t)(from & ~TAG), .size = size});
    return SUCCESS;
}
