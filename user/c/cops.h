/* The scheduler of the shared image for C programs: the same functions, in the same memory, that Rust programs use
 * through the crate `coroutine`.
 *
 * A coroutine is a control block (struct cops_header) in memory of the program, at the front of a structure with whatever
 * state it has. The scheduler calls its poll function when it is its turn; that does a step and answers COPS_PENDING (wait
 * until somebody wakes it), COPS_YIELDED (others first, then again) or COPS_DONE. After the end the scheduler calls its
 * finish function and never touches the block again.
 *
 *     struct cops_scheduler scheduler;
 *     if (cops_scheduler_load(&scheduler, (const void *)cops_auxiliary_value(COPS_AT_SYSINFO_EHDR)) != 0)
 *         ...this is not the image of a scheduler of this version...
 *     scheduler.executor_init(executor, ready_words, &hooks);
 *     scheduler.add_slots(executor, page, 0);
 *     scheduler.add_worker(executor, 0, &signals);
 *     uint64_t cid = scheduler.spawn(executor, &coroutine.header, 0);
 *     scheduler.run(executor, 0, 0);
 *
 * Layouts and numbers are those of the crate `scheduler`; a test of the crate `unix` compares them.
 */
#ifndef COPS_H
#define COPS_H

#include <stddef.h>
#include <stdint.h>

/* The major version, in the upper half of what cops_scheduler_version gives. */
#define COPS_SCHEDULER_MAJOR 1

/* Answers of a poll. */
#define COPS_PENDING 0
#define COPS_YIELDED 1
#define COPS_DONE 2

/* How a coroutine ended, for its finish function. */
#define COPS_COMPLETED 0
#define COPS_CANCELLED 1

/* Answers of run and run_one. */
#define COPS_IDLE 0
#define COPS_ATTENTION 1
#define COPS_RAN 2

/* Status of functions. */
#define COPS_OK 0
#define COPS_STALE 1
#define COPS_FULL 2

/* Bytes of the memory that add_slots takes; aligned to 16. */
#define COPS_SLOTS_SIZE 4096
/* Alignment of an executor. */
#define COPS_EXECUTOR_ALIGNMENT 128
/* Words of a control block. */
#define COPS_HEADER_WORDS 7
/* Workers that an executor can have. */
#define COPS_WORKERS 8

struct cops_executor;
struct cops_header;

typedef uint32_t (*cops_poll)(struct cops_header *header, void *frame);
typedef void (*cops_finish)(struct cops_header *header, uint32_t outcome);

/* The control block of a coroutine. It stays in place from spawn until finish is called. */
struct cops_header {
    /* The scheduler's. */
    void *reserved[3];
    /* Names the coroutine; written by spawn. */
    uint64_t cid;
    cops_poll poll;
    cops_finish finish;
    /* Kind and priority at the start. */
    uint64_t initial;
};

_Static_assert(sizeof(struct cops_header) == COPS_HEADER_WORDS * 8, "a control block has the scheduler's layout");

/* Fills in a control block. Priorities are 0 (most important) to 63; the kind means nothing to the scheduler. */
static inline void cops_header_init(struct cops_header *header, cops_poll poll, cops_finish finish, uint16_t kind,
                                    uint8_t priority)
{
    header->reserved[0] = header->reserved[1] = header->reserved[2] = 0;
    header->cid = 0;
    header->poll = poll;
    header->finish = finish;
    header->initial = (uint64_t)kind << 16 | (uint64_t)(priority > 63 ? 63 : priority) << 8;
}

/* What the scheduler calls, never while it holds a lock. Any of them may be null. */
struct cops_hooks {
    void *context;
    /* Make this worker, which had found nothing to do, call run again. */
    void (*notify)(void *context, uint32_t worker);
    /* The completion counters differ: take the completions and wake their coroutines. */
    void (*completions)(void *context, uint32_t worker);
    /* Continue a coroutine that was suspended inside a poll. */
    void (*resume)(void *context, struct cops_header *header);
    /* A lock has been busy for long. */
    void (*relax)(void *context);
};

/* Words that a worker looks at before each take. A null pointer means that there is nothing to look at. */
struct cops_signals {
    const uint64_t *attention;
    const uint64_t *completion_tail;
    const uint64_t *completion_head;
};

struct cops_counters {
    uint64_t polls;
    uint64_t wakes;
    uint64_t steals;
    uint64_t spins;
};

/* The scheduler's functions. */
struct cops_scheduler {
    uint32_t (*version)(void);
    size_t (*executor_size)(void);
    /* `ready` are the ready words of the process page, 64 bytes for each worker. */
    void (*executor_init)(struct cops_executor *executor, void *ready, const struct cops_hooks *hooks);
    intptr_t (*add_slots)(struct cops_executor *executor, void *memory, uint32_t worker);
    void (*add_worker)(struct cops_executor *executor, uint32_t worker, const struct cops_signals *signals);
    void (*remove_worker)(struct cops_executor *executor, uint32_t worker);
    /* Gives the cid, or 0 if more slots are needed. */
    uint64_t (*spawn)(struct cops_executor *executor, struct cops_header *header, uint32_t worker);
    intptr_t (*wake)(struct cops_executor *executor, uint64_t cid);
    intptr_t (*cancel)(struct cops_executor *executor, uint64_t cid);
    intptr_t (*set_priority)(struct cops_executor *executor, uint64_t cid, uint32_t priority);
    /* These three give -1 for a cid that is stale. */
    intptr_t (*priority)(struct cops_executor *executor, uint64_t cid);
    intptr_t (*kind)(struct cops_executor *executor, uint64_t cid);
    intptr_t (*state)(struct cops_executor *executor, uint64_t cid);
    /* The coroutine that this worker polls, or 0. */
    uint64_t (*current)(struct cops_executor *executor, uint32_t worker);
    uint64_t (*suspend)(struct cops_executor *executor, uint32_t worker);
    intptr_t (*resume)(struct cops_executor *executor, uint64_t cid);
    /* Polls what is ready, most important first, until nothing is; `frame` is passed to the polls. */
    uint32_t (*run)(struct cops_executor *executor, uint32_t worker, void *frame);
    uint32_t (*run_one)(struct cops_executor *executor, uint32_t worker, void *frame);
    void (*counters)(struct cops_executor *executor, uint32_t worker, struct cops_counters *counters);
};

/* ---- finding the functions: the image's dynamic symbols, as of any ELF shared object ---- */

static inline uint64_t cops_image_word(const unsigned char *image, size_t offset, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned index = 0; index < bytes; index++)
        value |= (uint64_t)image[offset + index] << 8 * index;
    return value;
}

static inline int cops_same_string(const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

/* The address of a symbol of the scheduler's image; null if it has none of this name. */
static inline void *cops_image_symbol(const void *address, const char *name)
{
    const unsigned char *image = address;
    if (cops_image_word(image, 0, 4) != 0x464c457f)
        return 0;
    size_t header = (size_t)cops_image_word(image, 32, 8);
    size_t dynamic = 0;
    for (uint64_t count = cops_image_word(image, 56, 2); count > 0; count--, header += 56)
        if (cops_image_word(image, header, 4) == 2) /* PT_DYNAMIC */
            dynamic = (size_t)cops_image_word(image, header + 16, 8);
    if (!dynamic)
        return 0;
    size_t hash = 0, strings = 0, symbols = 0;
    for (; cops_image_word(image, dynamic, 8) != 0; dynamic += 16) {
        size_t value = (size_t)cops_image_word(image, dynamic + 8, 8);
        switch (cops_image_word(image, dynamic, 8)) {
        case 4: /* DT_HASH */
            hash = value;
            break;
        case 5: /* DT_STRTAB */
            strings = value;
            break;
        case 6: /* DT_SYMTAB */
            symbols = value;
            break;
        }
    }
    if (!hash || !strings || !symbols)
        return 0;
    /* The second word of the hash table is the number of symbols. */
    for (uint64_t index = cops_image_word(image, hash + 4, 4); index > 1; index--) {
        size_t symbol = symbols + (size_t)(index - 1) * 24;
        const char *string = (const char *)image + strings + cops_image_word(image, symbol, 4);
        if (cops_image_word(image, symbol + 6, 2) != 0 && cops_same_string(string, name))
            return (void *)(image + cops_image_word(image, symbol + 8, 8));
    }
    return 0;
}

/* Finds all functions. 0, or -1 if this is no image of the scheduler, or not of this version. */
static inline int cops_scheduler_load(struct cops_scheduler *scheduler, const void *image)
{
    if (!image)
        return -1;
#define COPS_FIND(field, symbol)                                                                                       \
    do {                                                                                                               \
        void *function = cops_image_symbol(image, symbol);                                                             \
        if (!function)                                                                                                 \
            return -1;                                                                                                 \
        *(void **)&scheduler->field = function;                                                                        \
    } while (0)
    COPS_FIND(version, "cops_scheduler_version");
    COPS_FIND(executor_size, "cops_executor_size");
    COPS_FIND(executor_init, "cops_executor_init");
    COPS_FIND(add_slots, "cops_add_slots");
    COPS_FIND(add_worker, "cops_add_worker");
    COPS_FIND(remove_worker, "cops_remove_worker");
    COPS_FIND(spawn, "cops_spawn");
    COPS_FIND(wake, "cops_wake");
    COPS_FIND(cancel, "cops_cancel");
    COPS_FIND(set_priority, "cops_set_priority");
    COPS_FIND(priority, "cops_priority");
    COPS_FIND(kind, "cops_kind");
    COPS_FIND(state, "cops_state");
    COPS_FIND(current, "cops_current");
    COPS_FIND(suspend, "cops_suspend");
    COPS_FIND(resume, "cops_resume");
    COPS_FIND(run, "cops_run");
    COPS_FIND(run_one, "cops_run_one");
    COPS_FIND(counters, "cops_counters");
#undef COPS_FIND
    return scheduler->version() >> 16 == COPS_SCHEDULER_MAJOR ? 0 : -1;
}

#endif
