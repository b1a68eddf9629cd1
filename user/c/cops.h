/* The scheduler for C programs: coroutines with priorities, in the process, without a library.
 *
 * The first part is the scheduler's own interface: the functions that the image exports, and their data. The image
 * is the one that the kernel runs itself; it is mapped into every process, and cops_table_from_image finds its
 * functions. All memory is the caller's, and this part needs no kernel.
 *
 * The second part is for programs with one worker: a coroutine that is a structure with a step
 * function, a loop that sleeps in the kernel while nothing is ready, and asynchronous system calls whose completions
 * wake the coroutine that waits. It needs crt0.c.
 *
 * docs/book/c-programs.md is the introduction; docs/book/scheduler.md has the scheduler's guarantees; apps/hello-c
 * uses most of this. A test of the crate `vdso` compares numbers, layouts and prototypes with the
 * scheduler's.
 */
#ifndef COPS_H
#define COPS_H

#include <stddef.h>
#include <stdint.h>

#include "cops_unix.h"

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

/* The major version, in the upper 16 bits of cops_scheduler_version's result. An image with another one must not be
 * used. */
#define COPS_SCHEDULER_MAJOR 3

/* Results of functions. */
#define COPS_OK 0      /* success */
#define COPS_STALE 1   /* the coroutine has ended; no effect */
#define COPS_FULL 2    /* the executor has all the slots it can have */
#define COPS_NONE (-1) /* as COPS_STALE, from functions whose other answers are numbers from 0 */
#define COPS_NO_SLOT UINT64_MAX /* from `cid_at`: no slot has this index, nor a larger one */

/* Answers of a poll. */
#define COPS_PENDING 0 /* blocked until it is woken */
#define COPS_YIELDED 1 /* ready again, behind the others */
#define COPS_DONE 2    /* it has ended */

/* The outcome of a coroutine. */
#define COPS_COMPLETED 0 /* its poll answered COPS_DONE */
#define COPS_CANCELLED 1 /* it was cancelled, and is not polled any more */

/* The reason why cops_run returned. */
#define COPS_IDLE 0      /* nothing is ready; the worker will be notified */
#define COPS_ATTENTION 1 /* the attention word is not 0 */
#define COPS_RAN 2       /* one coroutine had its turn (cops_run_one only) */
#define COPS_OUTRANKED 3 /* the bitmap has a more important bit (cops_run_strictly only) */

/* The state of a coroutine. */
#define COPS_READY 1     /* it waits for a worker */
#define COPS_RUNNING 2   /* it is being polled */
#define COPS_BLOCKED 3   /* it waits for a wake */
#define COPS_SUSPENDED 4 /* it was interrupted inside a poll and keeps its stack */

/* When an idle worker is notified of work in the shard of a busy one. */
#define COPS_EAGER 0 /* at once */
#define COPS_LAZY 1  /* not for one coroutine that is no more important than the polled one */

/* Priorities go from 0, the most important, to 63. */
#define COPS_PRIORITIES 64
/* Workers of an executor are numbered from 0 to 7. */
#define COPS_WORKERS 8
/* Bytes of the memory that cops_add_slots takes, which must be aligned to 16; */
#define COPS_SLOTS_SIZE 4096
/* coroutines for which it is enough; */
#define COPS_SLOTS_IN_CHUNK 256
/* and how often an executor takes some. */
#define COPS_CHUNKS 1024
/* Alignment of an executor's memory. Its size is cops_executor_size's result. */
#define COPS_EXECUTOR_ALIGNMENT 128

/* ---- Layouts ---------------------------------------------------------------------------------------------------- */

#define COPS_LAYOUT(type, field, offset) \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field " is not where the scheduler has it")
#define COPS_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type " is not as large as the scheduler's")

/* Shards, lists and slots; only the scheduler looks inside. */
struct cops_executor;

struct cops_header;

/* A step of a coroutine. With a `cid` that is not 0, the coroutine's own, it polls the coroutine and answers
 * COPS_PENDING, COPS_YIELDED or COPS_DONE; `argument` is that of cops_run. With 0 it takes the control block back:
 * the executor will never access it again, and its memory may be reused, for another coroutine too; `argument` is
 * COPS_COMPLETED or COPS_CANCELLED, and the answer does not matter. */
typedef uint32_t (*cops_step)(struct cops_header *header, void *argument, uint64_t cid);

#define COPS_HEADER_WORDS 5
#define COPS_HEADER_SIZE (8 * COPS_HEADER_WORDS)
#define COPS_HEADER_LINK_OFFSET 0
#define COPS_HEADER_SLOT_OFFSET 16
#define COPS_HEADER_CID_OFFSET 24
#define COPS_HEADER_STEP_OFFSET 32

/* The control block of a coroutine: memory of the caller that does not move from cops_spawn until `finish` is
 * called. Usually the first field of a structure with the coroutine's state. Fill it with cops_header_init;
 * afterwards only `cid` is of interest to the caller. */
struct cops_header {
    const void *link[2];
    uint64_t slot; /* kind and priority before cops_spawn, then an address */
    uint64_t cid;  /* 0 before cops_spawn */
    cops_step step;
};

COPS_SIZE(cops_header, COPS_HEADER_SIZE);
COPS_LAYOUT(cops_header, link, COPS_HEADER_LINK_OFFSET);
COPS_LAYOUT(cops_header, slot, COPS_HEADER_SLOT_OFFSET);
COPS_LAYOUT(cops_header, cid, COPS_HEADER_CID_OFFSET);
COPS_LAYOUT(cops_header, step, COPS_HEADER_STEP_OFFSET);

#define COPS_PRIORITY_IN_HEADER_SHIFT 8
#define COPS_KIND_IN_HEADER_SHIFT 16

/* Prepares a control block that is not in use. The scheduler ignores `kind`; a priority of 64 or more counts as 63. */
static inline void cops_header_init(struct cops_header *header, cops_step step, uint16_t kind, uint32_t priority)
{
    uint64_t number = priority < COPS_PRIORITIES ? priority : COPS_PRIORITIES - 1;
    header->link[0] = NULL;
    header->link[1] = NULL;
    header->slot = (uint64_t)kind << COPS_KIND_IN_HEADER_SHIFT | number << COPS_PRIORITY_IN_HEADER_SHIFT;
    header->cid = 0;
    header->step = step;
}

#define COPS_READY_WORD_SIZE 64
#define COPS_READY_WORD_READY_OFFSET 0
#define COPS_READY_WORD_RUNNING_OFFSET 8

/* The published state of one worker; written by the scheduler only. An executor has one for each of its COPS_WORKERS
 * workers, whether they exist or not. In a process they are the first bytes of the process page, which the kernel
 * reads. */
struct cops_ready_word {
    _Alignas(64) uint64_t ready; /* bit p: a coroutine of priority p is ready */
    uint64_t running;            /* bit p: the worker polls one of priority p; 0 outside a poll */
    uint64_t reserved[6];
};

COPS_SIZE(cops_ready_word, COPS_READY_WORD_SIZE);
COPS_LAYOUT(cops_ready_word, ready, COPS_READY_WORD_READY_OFFSET);
COPS_LAYOUT(cops_ready_word, running, COPS_READY_WORD_RUNNING_OFFSET);

#define COPS_HOOKS_SIZE 56
#define COPS_HOOKS_CONTEXT_OFFSET 0
#define COPS_HOOKS_NOTIFY_OFFSET 8
#define COPS_HOOKS_COMPLETIONS_OFFSET 16
#define COPS_HOOKS_RESUME_OFFSET 24
#define COPS_HOOKS_RELAX_OFFSET 32
#define COPS_HOOKS_WORKER_OFFSET 40
#define COPS_HOOKS_SHARING_OFFSET 48

/* Functions of the caller that the executor calls, never while it holds a lock. Any of the functions may be NULL. */
struct cops_hooks {
    void *context; /* given to each of them */
    /* Make this worker, which has found no ready coroutine, call cops_run again. */
    void (*notify)(void *context, uint32_t worker);
    /* The completion counters of this worker differ: take the completions and wake their coroutines. */
    void (*completions)(void *context, uint32_t worker);
    /* Continue a coroutine that was suspended inside a poll, on its own stack. */
    void (*resume)(void *context, struct cops_header *header);
    /* A lock has been busy for long, so its holder probably has no hart: give it yours. */
    void (*relax)(void *context);
    /* Returns the calling worker, which is awake; another number outside of one. Called only with COPS_LAZY, which
     * notifies other workers where it is NULL. */
    uint32_t (*worker)(void *context);
    uint32_t sharing; /* COPS_EAGER or COPS_LAZY */
};

COPS_SIZE(cops_hooks, COPS_HOOKS_SIZE);
COPS_LAYOUT(cops_hooks, context, COPS_HOOKS_CONTEXT_OFFSET);
COPS_LAYOUT(cops_hooks, notify, COPS_HOOKS_NOTIFY_OFFSET);
COPS_LAYOUT(cops_hooks, completions, COPS_HOOKS_COMPLETIONS_OFFSET);
COPS_LAYOUT(cops_hooks, resume, COPS_HOOKS_RESUME_OFFSET);
COPS_LAYOUT(cops_hooks, relax, COPS_HOOKS_RELAX_OFFSET);
COPS_LAYOUT(cops_hooks, worker, COPS_HOOKS_WORKER_OFFSET);
COPS_LAYOUT(cops_hooks, sharing, COPS_HOOKS_SHARING_OFFSET);

#define COPS_SIGNALS_SIZE 24
#define COPS_SIGNALS_ATTENTION_OFFSET 0
#define COPS_SIGNALS_COMPLETION_TAIL_OFFSET 8
#define COPS_SIGNALS_COMPLETION_HEAD_OFFSET 16

/* Words that a worker reads before each poll; NULL for none. While the worker runs they must be written by atomic
 * stores. */
struct cops_signals {
    const uint64_t *attention;       /* not 0: return from cops_run with COPS_ATTENTION */
    const uint64_t *completion_tail; /* counts completions that were posted */
    const uint64_t *completion_head; /* counts completions that were taken; both or neither */
};

COPS_SIZE(cops_signals, COPS_SIGNALS_SIZE);
COPS_LAYOUT(cops_signals, attention, COPS_SIGNALS_ATTENTION_OFFSET);
COPS_LAYOUT(cops_signals, completion_tail, COPS_SIGNALS_COMPLETION_TAIL_OFFSET);
COPS_LAYOUT(cops_signals, completion_head, COPS_SIGNALS_COMPLETION_HEAD_OFFSET);

#define COPS_COUNTERS_SIZE 40
#define COPS_COUNTERS_POLLS_OFFSET 0
#define COPS_COUNTERS_WAKES_OFFSET 8
#define COPS_COUNTERS_STEALS_OFFSET 16
#define COPS_COUNTERS_SPINS_OFFSET 24
#define COPS_COUNTERS_RETRIES_OFFSET 32

/* Counters of a shard since the executor was made. */
struct cops_counters {
    uint64_t polls;   /* by its worker */
    uint64_t wakes;   /* blocked coroutines that became ready in it */
    uint64_t steals;  /* coroutines that its worker took from other shards */
    uint64_t spins;   /* turns spent waiting for its lock */
    uint64_t retries; /* atomic operations that failed because another one came first */
};

COPS_SIZE(cops_counters, COPS_COUNTERS_SIZE);
COPS_LAYOUT(cops_counters, polls, COPS_COUNTERS_POLLS_OFFSET);
COPS_LAYOUT(cops_counters, wakes, COPS_COUNTERS_WAKES_OFFSET);
COPS_LAYOUT(cops_counters, steals, COPS_COUNTERS_STEALS_OFFSET);
COPS_LAYOUT(cops_counters, spins, COPS_COUNTERS_SPINS_OFFSET);
COPS_LAYOUT(cops_counters, retries, COPS_COUNTERS_RETRIES_OFFSET);

/* ---- Functions -------------------------------------------------------------------------------------------------- */

/* The functions of the image; each has the exported name cops_NAME. All but the first three take an executor that was
 * made by `executor_init`, and may be called by any worker at any time unless they say otherwise, inside a poll too. */
struct cops_table {
    /* The version of these functions; the major one in the upper 16 bits. */
    uint32_t (*scheduler_version)(void);
    /* Bytes that an executor needs. */
    size_t (*executor_size)(void);
    /* Makes an executor in this memory, which is aligned to COPS_EXECUTOR_ALIGNMENT and does not move. `ready` are
     * COPS_WORKERS ready words that live as long and are written by the executor only; the hooks are copied. */
    void (*executor_init)(struct cops_executor *executor, const struct cops_ready_word *ready,
                          const struct cops_hooks *hooks);
    /* Gives the executor COPS_SLOTS_SIZE of memory, for ever, for COPS_SLOTS_IN_CHUNK more coroutines. `hint` is the
     * worker that will probably spawn them. COPS_OK, or COPS_FULL: the memory is unchanged. */
    intptr_t (*add_slots)(const struct cops_executor *executor, void *page, uint32_t hint);
    /* Announces a worker, which does not run yet. The signals are copied; the words that they name outlive it. */
    void (*add_worker)(const struct cops_executor *executor, uint32_t worker, const struct cops_signals *signals);
    /* Removes a worker, which is not inside `run`; others take the coroutines of its shard. */
    void (*remove_worker)(const struct cops_executor *executor, uint32_t worker);
    /* Makes a coroutine of a control block that was initialised and is not in use; it is ready at once. Returns its
     * cid, or 0 without an effect: `add_slots` first. */
    uint64_t (*spawn)(const struct cops_executor *executor, struct cops_header *header, uint32_t hint);
    /* Makes a blocked coroutine ready; one that is ready, running or suspended is polled once more. That poll sees the
     * caller's earlier writes. COPS_OK or COPS_STALE. */
    intptr_t (*wake)(const struct cops_executor *executor, uint64_t cid);
    /* Wakes as `wake` does, for a worker that will soon look for ready coroutines: a blocked one is queued at that
     * worker instead of its last one, and others are notified only if more than one coroutine waits for it. */
    intptr_t (*wake_here)(const struct cops_executor *executor, uint64_t cid, uint32_t worker);
    /* Cancels a coroutine: it is not polled again after a poll in progress, and a worker calls its `finish`.
     * COPS_OK or COPS_STALE. */
    intptr_t (*cancel)(const struct cops_executor *executor, uint64_t cid);
    /* Changes a coroutine's priority. A ready one moves to the end of its new list at once; another goes there when it
     * becomes ready. A priority of 64 or more counts as 63. COPS_OK or COPS_STALE. */
    intptr_t (*set_priority)(const struct cops_executor *executor, uint64_t cid, uint32_t priority);
    /* Returns a coroutine's priority, or COPS_NONE. */
    intptr_t (*priority)(const struct cops_executor *executor, uint64_t cid);
    /* Returns the kind with which a coroutine was initialised, or COPS_NONE. */
    intptr_t (*kind)(const struct cops_executor *executor, uint64_t cid);
    /* Returns COPS_READY, COPS_RUNNING, COPS_BLOCKED or COPS_SUSPENDED at a moment of the call, or COPS_NONE. */
    intptr_t (*state)(const struct cops_executor *executor, uint64_t cid);
    /* Returns the cid that this worker polls at this moment, or 0. */
    uint64_t (*current)(const struct cops_executor *executor, uint32_t worker);
    /* Marks the coroutine that this worker polls as suspended: the poll was interrupted, its stack is set aside, and
     * the worker may continue on another stack. For the worker itself. Returns the cid, or 0 outside a poll. */
    uint64_t (*suspend)(const struct cops_executor *executor, uint32_t worker);
    /* Makes a suspended coroutine ready; its worker will call the hook `resume`. COPS_OK or COPS_STALE. */
    intptr_t (*resume)(const struct cops_executor *executor, uint64_t cid);
    /* Polls ready coroutines, most important first, until nothing is ready (COPS_IDLE) or the attention word is not 0
     * (COPS_ATTENTION). Not inside a poll. `frame` is handed to each poll. */
    uint32_t (*run)(const struct cops_executor *executor, uint32_t worker, void *frame);
    /* Runs as `run` does, but returns after one coroutine was polled, resumed or finished (COPS_RAN). */
    uint32_t (*run_one)(const struct cops_executor *executor, uint32_t worker, void *frame);
    /* Runs as `run` does, but returns with COPS_OUTRANKED when the bitmap `elsewhere` has a more important bit than
     * every ready coroutine here, none of which counts for more than `ceiling`. The first poll is made without a
     * check. */
    uint32_t (*run_strictly)(const struct cops_executor *executor, uint32_t worker, void *frame,
                             const uint64_t *elsewhere, uint32_t ceiling);
    /* Writes a shard's counters. */
    void (*counters)(const struct cops_executor *executor, uint32_t shard, struct cops_counters *counters);
    /* Returns the cid of the coroutine in the slot with this index, 0 if the slot is free, and COPS_NO_SLOT if there is
     * no such slot, nor one with a larger index. */
    uint64_t (*cid_at)(const struct cops_executor *executor, uint32_t index);
};

/* The names of the table's functions, in its order. */
#define COPS_TABLE_NAMES(X)                        \
    X(scheduler_version, "cops_scheduler_version") \
    X(executor_size, "cops_executor_size")         \
    X(executor_init, "cops_executor_init")         \
    X(add_slots, "cops_add_slots")                 \
    X(add_worker, "cops_add_worker")               \
    X(remove_worker, "cops_remove_worker")         \
    X(spawn, "cops_spawn")                         \
    X(wake, "cops_wake")                           \
    X(wake_here, "cops_wake_here")                 \
    X(cancel, "cops_cancel")                       \
    X(set_priority, "cops_set_priority")           \
    X(priority, "cops_priority")                   \
    X(kind, "cops_kind")                           \
    X(state, "cops_state")                         \
    X(current, "cops_current")                     \
    X(suspend, "cops_suspend")                     \
    X(resume, "cops_resume")                       \
    X(run, "cops_run")                             \
    X(run_one, "cops_run_one")                     \
    X(run_strictly, "cops_run_strictly")           \
    X(counters, "cops_counters")                   \
    X(cid_at, "cops_cid_at")

#define COPS_COUNT_NAME(field, symbol) +1
_Static_assert(sizeof(struct cops_table) == (0 COPS_TABLE_NAMES(COPS_COUNT_NAME)) * sizeof(void (*)(void)),
               "each function of the table has its name");

/* ---- Finding the functions -------------------------------------------------------------------------------------- */

/* The parts of an ELF image (64 bits, little-endian) that are needed to find a dynamic symbol. */
struct cops_elf_header {
    unsigned char identification[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, program_headers, section_headers;
    uint32_t flags;
    uint16_t header_size, program_header_size, program_header_count;
};

struct cops_elf_program_header {
    uint32_t type, flags;
    uint64_t offset, address, physical_address, file_size, memory_size, alignment;
};

struct cops_elf_dynamic {
    uint64_t tag, value;
};

struct cops_elf_symbol {
    uint32_t name;
    uint8_t information, other;
    uint16_t section;
    uint64_t value, size;
};

/* Where an image has its dynamic symbols. */
struct cops_symbols {
    const char *base; /* base of the image's addresses */
    const struct cops_elf_symbol *symbols;
    const char *strings;
    const uint32_t *hash;     /* of DT_HASH, or NULL */
    const uint32_t *gnu_hash; /* of DT_GNU_HASH, or NULL */
};

/* Reads the program headers and the dynamic section of an image that is mapped as the kernel maps it. 0, or
 * -COPS_ENOEXEC if there is no such thing. The image is trusted: it comes from the kernel. */
static inline int cops_symbols_parse(const void *image, struct cops_symbols *found)
{
    static const unsigned char magic[6] = {0x7f, 'E', 'L', 'F', 2, 1};
    const struct cops_elf_header *header = image;
    const struct cops_elf_program_header *load = NULL, *dynamic = NULL;
    for (size_t index = 0; index < sizeof magic; index++)
        if (header->identification[index] != magic[index])
            return -COPS_ENOEXEC;
    const char *headers = (const char *)image + header->program_headers;
    for (size_t index = 0; index < header->program_header_count; index++) {
        const void *at = headers + index * header->program_header_size;
        const struct cops_elf_program_header *segment = at;
        if (segment->type == 1 && !load) /* PT_LOAD */
            load = segment;
        else if (segment->type == 2) /* PT_DYNAMIC */
            dynamic = segment;
    }
    if (!load || !dynamic)
        return -COPS_ENOEXEC;
    const char *base = (const char *)image + load->offset - load->address;
    const void *symbols = NULL, *strings = NULL, *hash = NULL, *gnu_hash = NULL, *section = base + dynamic->address;
    for (const struct cops_elf_dynamic *entry = section; entry->tag != 0; entry++) {
        const void *at = base + entry->value;
        if (entry->tag == 4) /* DT_HASH */
            hash = at;
        else if (entry->tag == 5) /* DT_STRTAB */
            strings = at;
        else if (entry->tag == 6) /* DT_SYMTAB */
            symbols = at;
        else if (entry->tag == 0x6ffffef5) /* DT_GNU_HASH */
            gnu_hash = at;
    }
    if (!symbols || !strings || (!hash && !gnu_hash))
        return -COPS_ENOEXEC;
    *found = (struct cops_symbols){base, symbols, strings, hash, gnu_hash};
    return 0;
}

/* Returns the number of dynamic symbols. No field has it, but the hash tables imply it: the old one has a chain entry
 * for each, and the newer one's last chain ends with the last symbol. */
static inline uint32_t cops_symbols_count(const struct cops_symbols *symbols)
{
    if (symbols->hash)
        return symbols->hash[1];
    uint32_t buckets = symbols->gnu_hash[0], first = symbols->gnu_hash[1], bloom_words = symbols->gnu_hash[2];
    const uint32_t *bucket = symbols->gnu_hash + 4 + 2 * (size_t)bloom_words;
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t index = 0; index < buckets; index++)
        if (bucket[index] > last)
            last = bucket[index];
    if (last < first)
        return first;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

/* Returns the address of a defined symbol, or NULL. */
static inline const void *cops_symbols_find(const struct cops_symbols *symbols, const char *name)
{
    uint32_t count = cops_symbols_count(symbols);
    for (uint32_t index = 1; index < count; index++) {
        const struct cops_elf_symbol *symbol = &symbols->symbols[index];
        const char *found = symbols->strings + symbol->name;
        size_t length = 0;
        while (found[length] && found[length] == name[length])
            length++;
        if (found[length] == name[length] && symbol->section != 0)
            return symbols->base + symbol->value;
    }
    return NULL;
}

/* Fills the table with the image's functions. 0; -COPS_ENOEXEC: this is no image; -COPS_ENOSYS: a function is missing,
 * or the image has another major version. */
static inline int cops_table_from_image(struct cops_table *table, const void *image)
{
    struct cops_symbols symbols;
    int result = image ? cops_symbols_parse(image, &symbols) : -COPS_ENOEXEC;
    if (result < 0)
        return result;
#define COPS_FIND_NAME(field, symbol)                                             \
    table->field = (__typeof__(table->field))cops_symbols_find(&symbols, symbol); \
    if (!table->field)                                                            \
        return -COPS_ENOSYS;
    COPS_TABLE_NAMES(COPS_FIND_NAME)
#undef COPS_FIND_NAME
    return table->scheduler_version() >> 16 == COPS_SCHEDULER_MAJOR ? 0 : -COPS_ENOSYS;
}

/* ---- A program with one worker ---------------------------------------------------------------------------------- */

/* The completion ring: the kernel writes entries and advances `tail`, the process reads them and advances `head`. */
struct cops_ring {
    uint64_t tail;
    uint64_t reserved1[7];
    uint64_t head;
    uint64_t reserved2[503];
    struct cops_completion entries[COPS_RING_CAPACITY];
};

COPS_LAYOUT(cops_ring, head, COPS_RING_HEAD_OFFSET);
COPS_LAYOUT(cops_ring, entries, COPS_RING_ENTRIES_OFFSET);

/* The state that the functions below share. */
struct cops_program {
    struct cops_table table;
    struct cops_executor *executor;
    struct cops_ring *ring;
    size_t coroutines; /* spawned, and their memory not yet given back */
};

/* A coroutine: the first field of a structure with its state. */
struct cops_coroutine {
    struct cops_header header;
    struct cops_program *program;
    uint32_t (*step)(struct cops_coroutine *self);
    void (*ended)(struct cops_coroutine *self, uint32_t outcome);
    long result; /* of the last asynchronous call */
    uint32_t line;
    uint8_t in_flight; /* a call whose completion has not come */
    uint8_t is_over;   /* it has ended, and only waits for that completion */
    uint8_t outcome;
};

_Static_assert(offsetof(struct cops_coroutine, header) == 0, "a control block's address is the coroutine's");

static inline void cops_coroutine_give_back(struct cops_coroutine *coroutine, uint32_t outcome)
{
    coroutine->program->coroutines--;
    if (coroutine->ended)
        coroutine->ended(coroutine, outcome);
}

static inline uint32_t cops_coroutine_step(struct cops_header *header, void *argument, uint64_t cid)
{
    struct cops_coroutine *coroutine = (struct cops_coroutine *)header;
    if (cid != 0)
        return coroutine->step(coroutine);
    uint32_t outcome = (uint32_t)(uintptr_t)argument;
    if (coroutine->in_flight) {
        /* The kernel may still write to the call's buffer; its completion comes in any case, and soon. */
        coroutine->is_over = 1;
        coroutine->outcome = (uint8_t)outcome;
        cops_cancel_call((uint64_t)(uintptr_t)coroutine);
    } else {
        cops_coroutine_give_back(coroutine, outcome);
    }
    return COPS_DONE;
}

/* The hook `completions`: takes the posted completions. One with a token is that of a cops_coroutine_call;
 * one without only wakes the coroutine that its cid names, if there still is one. So calls that are made in other ways
 * must have the token 0. */
static inline void cops_program_take_completions(void *context, uint32_t worker)
{
    struct cops_program *program = context;
    struct cops_ring *ring = program->ring;
    (void)worker;
    /* Acquire: the entries' words are there when `tail` says so. */
    while (__atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) != ring->head) {
        struct cops_completion completion = ring->entries[ring->head % COPS_RING_CAPACITY];
        /* Release: the kernel may overwrite the entry only after it was read. */
        __atomic_store_n(&ring->head, ring->head + 1, __ATOMIC_RELEASE);
        if (completion.token != 0) {
            struct cops_coroutine *coroutine = (struct cops_coroutine *)(uintptr_t)completion.token;
            coroutine->result = (long)completion.result;
            coroutine->in_flight = 0;
            if (coroutine->is_over) {
                cops_coroutine_give_back(coroutine, coroutine->outcome);
                continue;
            }
        }
        program->table.wake(program->executor, completion.cid);
    }
}

/* The hook `notify`. */
static inline void cops_program_notify(void *context, uint32_t worker)
{
    (void)context;
    cops_worker_wake(worker);
}

/* Finds the scheduler and makes the process's executor, with one worker. There can be only one for each process,
 * because there is one process page. 0 or -errno. */
static inline int cops_program_init(struct cops_program *program)
{
    const void *image = (const void *)cops_auxiliary_value(COPS_AT_SYSINFO_EHDR);
    const struct cops_ready_word *ready = (const void *)cops_auxiliary_value(COPS_AT_PROCESS_PAGE);
    program->ring = (struct cops_ring *)cops_auxiliary_value(COPS_AT_COMPLETION_RING);
    program->coroutines = 0;
    if (!ready || !program->ring)
        return -COPS_ENOSYS;
    int result = cops_table_from_image(&program->table, image);
    if (result < 0)
        return result;
    long memory = cops_map(program->table.executor_size());
    if (memory < 0)
        return (int)memory;
    program->executor = (struct cops_executor *)memory;
    struct cops_hooks hooks = {program, cops_program_notify, cops_program_take_completions, NULL, NULL, NULL,
                                COPS_EAGER};
    struct cops_signals signals = {NULL, &program->ring->tail, &program->ring->head};
    program->table.executor_init(program->executor, ready, &hooks);
    program->table.add_worker(program->executor, 0, &signals);
    return 0;
}

/* Makes a coroutine in memory that is not in use, which stays the coroutine's until `ended` is called (NULL for no
 * call). `step` is called at each of its turns. If it ends while a call of it is in flight, the call is
 * cancelled, and `ended` waits until the kernel has let go of the call's buffer. Returns its cid; 0 if there is no
 * memory for it. */
static inline uint64_t cops_program_spawn(struct cops_program *program, struct cops_coroutine *coroutine,
                                          uint32_t (*step)(struct cops_coroutine *self),
                                          void (*ended)(struct cops_coroutine *self, uint32_t outcome),
                                          uint32_t priority)
{
    cops_header_init(&coroutine->header, cops_coroutine_step, 0, priority);
    coroutine->program = program;
    coroutine->step = step;
    coroutine->ended = ended;
    coroutine->result = 0;
    coroutine->line = 0;
    coroutine->in_flight = 0;
    coroutine->is_over = 0;
    uint64_t cid = program->table.spawn(program->executor, &coroutine->header, 0);
    if (cid == 0) {
        long chunk = cops_map(COPS_SLOTS_SIZE);
        if (chunk < 0)
            return 0;
        if (program->table.add_slots(program->executor, (void *)chunk, 0) != COPS_OK) {
            cops_unmap((void *)chunk, COPS_SLOTS_SIZE);
            return 0;
        }
        cid = program->table.spawn(program->executor, &coroutine->header, 0);
    }
    if (cid != 0)
        program->coroutines++;
    return cid;
}

/* Runs coroutines until the last one has ended and its memory was given back; sleeps in the kernel while none is ready.
 * So a coroutine that is never woken makes it sleep for ever. Not inside a step. 0 or -errno. */
static inline int cops_program_run(struct cops_program *program)
{
    for (;;) {
        program->table.run(program->executor, 0, program);
        if (program->coroutines == 0)
            return 0;
        /* If more completions were posted than taken, this returns at once. */
        long result = cops_worker_wait(program->ring->head, UINT64_MAX);
        if (result < 0 && result != -COPS_EINTR)
            return (int)result;
    }
}

/* The table's functions of the same names. */
static inline intptr_t cops_program_wake(const struct cops_program *program, uint64_t cid)
{
    return program->table.wake(program->executor, cid);
}

static inline intptr_t cops_program_cancel(const struct cops_program *program, uint64_t cid)
{
    return program->table.cancel(program->executor, cid);
}

static inline intptr_t cops_program_set_priority(const struct cops_program *program, uint64_t cid, uint32_t priority)
{
    return program->table.set_priority(program->executor, cid, priority);
}

static inline intptr_t cops_program_priority(const struct cops_program *program, uint64_t cid)
{
    return program->table.priority(program->executor, cid);
}

static inline intptr_t cops_program_state(const struct cops_program *program, uint64_t cid)
{
    return program->table.state(program->executor, cid);
}

/* Returns the cid of the coroutine whose step runs, or 0. */
static inline uint64_t cops_program_current(const struct cops_program *program)
{
    return program->table.current(program->executor, 0);
}

/* Makes a system call for this coroutine, which has no other in flight, at its priority. If it can be done at once,
 * its result is returned. Otherwise that is COPS_WILL_BE_POSTED: the coroutine will be woken when `in_flight` is 0
 * again, and until then the memory that the call reads and writes must not move. `result` has the result in both
 * cases. */
static inline long cops_coroutine_call(struct cops_coroutine *self, long number, const long arguments[6])
{
    struct cops_program *program = self->program;
    uint64_t cid = self->header.cid;
    intptr_t priority = program->table.priority(program->executor, cid);
    long result =
        cops_syscall_asynchronous(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                                  arguments[5], cid, (unsigned)priority, (uint64_t)(uintptr_t)self);
    if (result == COPS_WILL_BE_POSTED)
        self->in_flight = 1;
    else
        self->result = result;
    return result;
}

/* A step as straight code: between COPS_BEGIN and COPS_END the macros below may leave the step and return to the
 * same place. They store only the place: local variables do not keep their values, so these belong into the coroutine's
 * structure. Each needs a line of its own, and not inside a switch statement. */
#define COPS_BEGIN(self)  \
    switch ((self)->line) \
    {                     \
    case 0:

#define COPS_END(self) \
    }                  \
    return COPS_DONE

/* Lets equally important coroutines run, and continues. */
#define COPS_YIELD(self)         \
    do {                         \
        (self)->line = __LINE__; \
        return COPS_YIELDED;     \
    case __LINE__:;              \
    } while (0)

/* Waits until the coroutine is woken. */
#define COPS_WAIT(self)          \
    do {                         \
        (self)->line = __LINE__; \
        return COPS_PENDING;     \
    case __LINE__:;              \
    } while (0)

/* Waits until a condition holds, which is checked now and after each wake. */
#define COPS_WAIT_UNTIL(self, condition) \
    do {                                 \
        (self)->line = __LINE__;         \
    case __LINE__:                       \
        if (!(condition))                \
            return COPS_PENDING;         \
    } while (0)

/* Makes the system call COPS_SYS_name with up to six arguments (of type long), and waits for its result, which is in
 * the coroutine's `result` afterwards: a number, or -errno. */
#define COPS_CALL(self, name, ...)                                                  \
    do {                                                                            \
        cops_coroutine_call((self), COPS_SYS_##name, (const long[6]){__VA_ARGS__}); \
        (self)->line = __LINE__;                                                    \
    case __LINE__:                                                                  \
        if ((self)->in_flight)                                                      \
            return COPS_PENDING;                                                    \
    } while (0)

#endif
