/* Coroutines in C: the scheduler of the shared image, asynchronous system calls, no library.
 *
 * Three small plays, each of which checks its own result: coroutines of different priorities run in their order, a
 * producer wakes a consumer that it knows by its cid, and sleepers wait in asynchronous system calls whose completions
 * wake them in the order of their times.
 */
#include "cops.h"
#include "cops_unix.h"

#define SLEEPERS 6
#define VALUES 100
#define MILLISECOND 1000000l

static struct cops_scheduler scheduler;
static struct cops_executor *executor;
/* The kernel writes the tail of the completion ring, the program its head. */
static volatile unsigned char *ring;
/* How many coroutines have not ended. */
static int living;

static void print(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    cops_write(1, text, length);
}

static uint64_t *ring_word(size_t offset)
{
    return (uint64_t *)(ring + offset);
}

/* Takes what the kernel has posted. The calls here have token 0: their completions only name who waits. */
static void take_completions(void *context, uint32_t worker)
{
    (void)context;
    (void)worker;
    uint64_t head = *ring_word(COPS_RING_HEAD_OFFSET);
    while (head != __atomic_load_n(ring_word(0), __ATOMIC_ACQUIRE)) {
        size_t entry = COPS_RING_ENTRIES_OFFSET + (head % COPS_RING_CAPACITY) * sizeof(struct cops_completion);
        uint64_t cid = *ring_word(entry + 8);
        head++;
        __atomic_store_n(ring_word(COPS_RING_HEAD_OFFSET), head, __ATOMIC_RELEASE);
        scheduler.wake(executor, cid);
    }
}

static void has_ended(struct cops_header *header, uint32_t outcome)
{
    (void)header;
    (void)outcome;
    living--;
}

static void start(struct cops_header *header, cops_poll poll, uint8_t priority)
{
    cops_header_init(header, poll, has_ended, 0, priority);
    if (scheduler.spawn(executor, header, 0) == 0)
        cops_exit(3);
    living++;
}

/* ---- priorities ---- */

struct ranked {
    struct cops_header header;
    int number;
};

static int order[SLEEPERS];
static int ordered;

static uint32_t poll_ranked(struct cops_header *header, void *frame)
{
    (void)frame;
    order[ordered++] = ((struct ranked *)header)->number;
    return COPS_DONE;
}

/* ---- producer and consumer ---- */

static int queue[4];
static int queue_length;

struct consumer {
    struct cops_header header;
    int received;
    int sum;
};

static struct consumer consumer;

static uint32_t poll_consumer(struct cops_header *header, void *frame)
{
    struct consumer *self = (struct consumer *)header;
    (void)frame;
    while (queue_length > 0) {
        self->sum += queue[--queue_length];
        self->received++;
    }
    return self->received == VALUES ? COPS_DONE : COPS_PENDING;
}

struct producer {
    struct cops_header header;
    int sent;
};

static uint32_t poll_producer(struct cops_header *header, void *frame)
{
    struct producer *self = (struct producer *)header;
    (void)frame;
    while (self->sent < VALUES) {
        if (queue_length == 4) {
            scheduler.wake(executor, consumer.header.cid);
            return COPS_YIELDED;
        }
        queue[queue_length++] = ++self->sent;
    }
    scheduler.wake(executor, consumer.header.cid);
    return COPS_DONE;
}

/* ---- sleepers ---- */

struct sleeper {
    struct cops_header header;
    int number;
    int asleep;
    struct cops_timespec duration;
};

static uint32_t poll_sleeper(struct cops_header *header, void *frame)
{
    struct sleeper *self = (struct sleeper *)header;
    (void)frame;
    if (!self->asleep) {
        self->asleep = 1;
        long result = cops_syscall_asynchronous(COPS_SYS_nanosleep, (long)&self->duration, 0, 0, 0, 0, 0, header->cid, 4, 0);
        if (result == COPS_WILL_BE_POSTED)
            return COPS_PENDING;
        /* The time was over at once, which it is not here, or the call was refused. */
        cops_exit(4);
    }
    order[ordered++] = self->number;
    return COPS_DONE;
}

/* ---- main ---- */

/* Runs until all coroutines have ended. */
static void run(void)
{
    while (living > 0) {
        scheduler.run(executor, 0, 0);
        if (living > 0)
            cops_worker_wait(*ring_word(COPS_RING_HEAD_OFFSET), UINT64_MAX);
    }
}

static int check(int condition, const char *what)
{
    print(what);
    print(condition ? ": right\n" : ": WRONG\n");
    return condition ? 0 : 1;
}

static int is_sorted(void)
{
    for (int index = 0; index < ordered; index++)
        if (order[index] != index)
            return 0;
    return ordered == SLEEPERS;
}

int main(int count, char **arguments, char **environment)
{
    (void)environment;
    if (count < 1 || !arguments[0])
        return 2;
    ring = (volatile unsigned char *)cops_auxiliary_value(COPS_AT_COMPLETION_RING);
    void *ready = (void *)cops_auxiliary_value(COPS_AT_PROCESS_PAGE);
    if (!ring || !ready || cops_scheduler_load(&scheduler, (const void *)cops_auxiliary_value(COPS_AT_SYSINFO_EHDR)) != 0) {
        print("hello-c: there is no scheduler here\n");
        return 2;
    }
    /* Mappings begin at pages, which is more than the alignment that is asked for. */
    long memory = cops_map(scheduler.executor_size());
    long slots = cops_map(COPS_SLOTS_SIZE);
    if (memory < 0 || slots < 0)
        return 2;
    executor = (struct cops_executor *)memory;
    struct cops_hooks hooks = {0, 0, take_completions, 0, 0};
    struct cops_signals signals = {0, ring_word(0), ring_word(COPS_RING_HEAD_OFFSET)};
    scheduler.executor_init(executor, ready, &hooks);
    if (scheduler.add_slots(executor, (void *)slots, 0) != COPS_OK)
        return 2;
    scheduler.add_worker(executor, 0, &signals);

    print("Hello from C!\n");
    int wrong = 0;

    static struct ranked ranked[SLEEPERS];
    for (int index = 0; index < SLEEPERS; index++) {
        ranked[index].number = SLEEPERS - 1 - index;
        start(&ranked[index].header, poll_ranked, (uint8_t)(10 * ranked[index].number));
    }
    run();
    wrong += check(is_sorted(), "priorities");

    static struct producer producer;
    start(&consumer.header, poll_consumer, 1);
    /* As important as the consumer: a yield is for equals. */
    start(&producer.header, poll_producer, 1);
    run();
    wrong += check(consumer.sum == VALUES * (VALUES + 1) / 2, "producer and consumer");

    static struct sleeper sleepers[SLEEPERS];
    ordered = 0;
    for (int index = 0; index < SLEEPERS; index++) {
        sleepers[index].number = SLEEPERS - 1 - index;
        sleepers[index].duration.nanoseconds = 5 * MILLISECOND + 20 * MILLISECOND * sleepers[index].number;
        start(&sleepers[index].header, poll_sleeper, 4);
    }
    run();
    wrong += check(is_sorted(), "sleepers");
    wrong += check(scheduler.wake(executor, consumer.header.cid) == COPS_STALE, "stale cid");

    return wrong == 0 ? 0 : 1;
}
