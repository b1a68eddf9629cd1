/* Coroutines in C: an example, and a test of user/c/cops.h at once.
 *
 * Each scene makes a few coroutines, runs them to their end and compares the order of what they did with what the
 * scheduler promises. The exit status is 0 only if everything was as expected.
 */
#include "cops.h"

static struct cops_program program;
static int failures;

/* ---- Printing, and judging -------------------------------------------------------------------------------------- */

static size_t length_of(const char *text)
{
    size_t length = 0;
    while (text[length])
        length++;
    return length;
}

static int is_equal(const char *one, const char *other)
{
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

/* A line is written with one call, so that it stays whole on a console that others write to as well. */
static char line[256];
static size_t line_length;

static void put(const char *text)
{
    for (; *text && line_length < sizeof line - 1; text++)
        line[line_length++] = *text;
}

static void put_number(long number)
{
    char digits[24];
    size_t at = sizeof digits;
    unsigned long rest = number < 0 ? -(unsigned long)number : (unsigned long)number;
    digits[--at] = 0;
    do
        digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        digits[--at] = '-';
    put(digits + at);
}

static void end_line(void)
{
    line[line_length++] = '\n';
    cops_write(1, line, line_length);
    line_length = 0;
}

static void expect(int condition, const char *what)
{
    if (!condition) {
        failures++;
        put("  NOT AS EXPECTED: ");
        put(what);
        end_line();
    }
}

static void expect_number(long number, long expected, const char *what)
{
    if (number != expected) {
        failures++;
        put("  NOT AS EXPECTED: ");
        put(what);
        put(" is ");
        put_number(number);
        put(", not ");
        put_number(expected);
        end_line();
    }
}

/* The log of a scene's coroutines, in order. */
static char trace[128];
static size_t trace_length;

static void note(const char *text)
{
    if (trace_length > 0 && trace_length < sizeof trace - 1)
        trace[trace_length++] = ' ';
    for (; *text && trace_length < sizeof trace - 1; text++)
        trace[trace_length++] = *text;
    trace[trace_length] = 0;
}

/* Runs the spawned coroutines to their ends. */
static void play(const char *scene, const char *expected)
{
    trace_length = 0;
    trace[0] = 0;
    int result = cops_program_run(&program);
    put(scene);
    put(": ");
    put(trace);
    end_line();
    expect_number(result, 0, "the result of running");
    if (!is_equal(trace, expected)) {
        put("  expected: ");
        put(expected);
        end_line();
        expect(0, "the order");
    }
}

static uint64_t now_ns(void)
{
    struct cops_timespec time = {0, 0};
    expect_number(cops_clock_gettime(1, &time), 0, "reading the clock");
    return (uint64_t)time.seconds * 1000000000u + (uint64_t)time.nanoseconds;
}

/* ---- Coroutines ------------------------------------------------------------------------------------------------- */

/* A coroutine's state between its steps is behind the part that the scheduler uses. */
struct actor {
    struct cops_coroutine coroutine;
    const char *name;
    uint64_t other; /* another coroutine that it wakes or changes */
    int turns;
    int descriptor;
    struct cops_timespec duration;
    uint64_t start_ns;
    uint32_t outcome;
    int has_ended;
    char buffer[16];
};

static struct actor actors[4];

static void ended(struct cops_coroutine *self, uint32_t outcome)
{
    struct actor *actor = (struct actor *)self;
    actor->outcome = outcome;
    actor->has_ended++;
}

static uint64_t spawn(unsigned index, const char *name, uint32_t (*step)(struct cops_coroutine *), uint32_t priority)
{
    struct actor *actor = &actors[index];
    *actor = (struct actor){.name = name, .outcome = 99};
    uint64_t cid = cops_program_spawn(&program, &actor->coroutine, step, ended, priority);
    expect(cid != 0 && cid == actor->coroutine.header.cid, "a coroutine has a cid");
    expect_number(cops_program_state(&program, cid), COPS_READY, "the state after spawning");
    return cid;
}

/* Logs its name at each turn, with a pause in between. */
static uint32_t speak(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    COPS_BEGIN(self);
    while (actor->turns-- > 1) {
        note(actor->name);
        COPS_YIELD(self);
    }
    note(actor->name);
    expect(cops_program_current(&program) == self->header.cid, "the current coroutine is the one that runs");
    expect_number(cops_program_state(&program, self->header.cid), COPS_RUNNING, "the state while running");
    COPS_END(self);
}

/* Waits to be woken, twice. */
static uint32_t sleep_twice(struct cops_coroutine *self)
{
    COPS_BEGIN(self);
    note("waits");
    COPS_WAIT(self);
    note("woken");
    COPS_WAIT(self);
    note("again");
    COPS_END(self);
}

/* Wakes another by its cid, also after its end. */
static uint32_t wake_other(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    COPS_BEGIN(self);
    expect_number(cops_program_state(&program, actor->other), COPS_BLOCKED, "the state of one that waits");
    note("wakes");
    expect_number(cops_program_wake(&program, actor->other), COPS_OK, "waking");
    expect_number(cops_program_state(&program, actor->other), COPS_READY, "the state after a wake");
    /* The other is more important, so it runs before this continues. */
    COPS_YIELD(self);
    note("wakes");
    expect_number(cops_program_wake(&program, actor->other), COPS_OK, "waking once more");
    COPS_YIELD(self);
    expect_number(cops_program_wake(&program, actor->other), COPS_STALE, "waking one that has ended");
    expect_number(cops_program_state(&program, actor->other), COPS_NONE, "the state of one that has ended");
    COPS_END(self);
}

/* Makes another, which is ready, more important. */
static uint32_t promote_other(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    note("promotes");
    expect_number(cops_program_set_priority(&program, actor->other, 2), COPS_OK, "changing a priority");
    expect_number(cops_program_priority(&program, actor->other), 2, "the changed priority");
    return COPS_DONE;
}

/* Sleeps in the kernel, which wakes it by a completion. */
static uint32_t sleep_in_kernel(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    COPS_BEGIN(self);
    actor->start_ns = now_ns();
    note("sleeps");
    COPS_CALL(self, nanosleep, (long)&actor->duration, 0);
    note(actor->name);
    expect_number(self->result, 0, "the result of sleeping");
    expect(now_ns() - actor->start_ns >= (uint64_t)actor->duration.nanoseconds, "it slept for as long as it should");
    COPS_END(self);
}

/* Sleeps with a call that only its cid identifies: the completion says which coroutine to wake, and nothing more. */
static uint32_t sleep_without_token(struct cops_coroutine *self)
{
    static const struct cops_timespec duration = {0, 1000000};
    COPS_BEGIN(self);
    note("sleeps");
    expect_number(cops_syscall_asynchronous(COPS_SYS_nanosleep, (long)&duration, 0, 0, 0, 0, 0, self->header.cid, 3, 0),
                  COPS_WILL_BE_POSTED, "the answer to a call that waits");
    COPS_WAIT(self);
    note("awake");
    COPS_END(self);
}

static uint32_t read_pipe(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    COPS_BEGIN(self);
    note("reads");
    COPS_CALL(self, read, actor->descriptor, (long)actor->buffer, sizeof actor->buffer);
    note("has");
    expect_number(self->result, 6, "the number of bytes from the pipe");
    expect(is_equal(actor->buffer, "answer"), "the bytes from the pipe");
    COPS_END(self);
}

static uint32_t write_pipe(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    COPS_BEGIN(self);
    note("writes");
    /* There is room in the pipe: this is done at once, without a completion. */
    COPS_CALL(self, write, actor->descriptor, (long)"answer", 6);
    expect_number(self->result, 6, "the number of bytes to the pipe");
    note("wrote");
    COPS_END(self);
}

static uint32_t cancel_other(struct cops_coroutine *self)
{
    struct actor *actor = (struct actor *)self;
    note("cancels");
    expect_number(cops_program_cancel(&program, actor->other), COPS_OK, "cancelling");
    return COPS_DONE;
}

/* ---- Scenes ----------------------------------------------------------------------------------------------------- */

static void find_functions(void)
{
    const void *image = (const void *)cops_auxiliary_value(COPS_AT_SYSINFO_EHDR);
    struct cops_symbols symbols;
    expect_number(cops_symbols_parse(image, &symbols), 0, "the image");
    /* The image has hash tables of both kinds; either is enough. */
    expect(symbols.hash && symbols.gnu_hash, "the image's hash tables");
    uint32_t count = cops_symbols_count(&symbols);
    symbols.hash = NULL;
    expect_number(cops_symbols_count(&symbols), count, "the number of symbols by the newer hash table");
    const void *wake = cops_symbols_find(&symbols, "cops_wake");
    expect((uintptr_t)wake == (uintptr_t)program.table.wake, "a name finds a function");
    expect(!cops_symbols_find(&symbols, "cops_wak") && !cops_symbols_find(&symbols, "cops_wakes"), "only whole names");
    struct cops_table table;
    expect_number(cops_table_from_image(&table, &program), -COPS_ENOEXEC, "looking where there is no image");
    put("The scheduler's version is ");
    put_number(program.table.scheduler_version() >> 16);
    put(", it has ");
    put_number(count - 1);
    put(" symbols, and an executor takes ");
    put_number((long)program.table.executor_size());
    put(" bytes");
    end_line();
}

int main(int count, char **arguments, char **environment)
{
    (void)environment;
    expect(count == 1 && length_of(arguments[0]) > 0, "a program is told its name");
    int result = cops_program_init(&program);
    if (result < 0) {
        put("There is no scheduler to use: ");
        put_number(result);
        end_line();
        return 1;
    }
    put("Hello from C!");
    end_line();
    find_functions();

    /* Importance goes before the order of spawning; equals take turns. */
    spawn(0, "least", speak, 60);
    spawn(1, "one", speak, 4);
    spawn(2, "two", speak, 4);
    spawn(3, "most", speak, 0);
    actors[1].turns = actors[2].turns = 3;
    play("Priorities", "most one two one two one two least");

    uint64_t sleeper = spawn(0, "", sleep_twice, 1);
    spawn(1, "", wake_other, 5);
    actors[1].other = sleeper;
    play("Waking", "waits wakes woken wakes again");

    uint64_t old = sleeper;
    spawn(0, "first", speak, 10);
    uint64_t second = spawn(1, "second", speak, 10);
    spawn(2, "", promote_other, 1);
    actors[2].other = second;
    expect(old != actors[0].coroutine.header.cid, "a cid is not used twice");
    expect_number(cops_program_wake(&program, old), COPS_STALE, "an old cid");
    play("Changing a priority", "promotes second first");

    /* Completions come in the order of time, whatever the order of the calls was. */
    spawn(0, "third", sleep_in_kernel, 1);
    spawn(1, "second", sleep_in_kernel, 1);
    spawn(2, "first", sleep_in_kernel, 1);
    for (int index = 0; index < 3; index++)
        actors[index].duration.nanoseconds = 50000000 + (2 - index) * 100000000;
    play("Sleeping", "sleeps sleeps sleeps first second third");

    spawn(0, "", sleep_without_token, 1);
    play("Sleeping by cid", "sleeps awake");

    int pipe[2] = {-1, -1};
    expect_number(cops_pipe(pipe, 0), 0, "making a pipe");
    spawn(0, "", read_pipe, 1);
    spawn(1, "", write_pipe, 9);
    actors[0].descriptor = pipe[0];
    actors[1].descriptor = pipe[1];
    play("A pipe", "reads writes wrote has");

    /* One that waits for a wake, and one whose call is in flight: both end, and the second's memory comes back only
     * when the kernel has let go of its buffer. */
    uint64_t waiting = spawn(0, "", sleep_twice, 1);
    uint64_t reading = spawn(1, "", read_pipe, 1);
    spawn(2, "", cancel_other, 9);
    spawn(3, "", cancel_other, 9);
    actors[1].descriptor = pipe[0];
    actors[2].other = waiting;
    actors[3].other = reading;
    play("Cancelling", "waits reads cancels cancels");
    expect(actors[0].has_ended == 1 && actors[0].outcome == COPS_CANCELLED, "the end of one that waited");
    expect(actors[1].has_ended == 1 && actors[1].outcome == COPS_CANCELLED, "the end of one with a call in flight");
    expect(actors[2].has_ended == 1 && actors[2].outcome == COPS_COMPLETED, "the end of the one that cancelled");
    expect_number(actors[1].coroutine.result, -COPS_ECANCELED, "the result of the cancelled call");
    cops_close(pipe[0]);
    cops_close(pipe[1]);

    struct cops_counters counters = {0, 0, 0, 0};
    program.table.counters(program.executor, 0, &counters);
    put_number((long)counters.polls);
    put(" polls, ");
    put_number((long)counters.wakes);
    put(" wakes");
    end_line();
    expect_number((long)counters.steals, 0, "steals of a single worker");
    expect(counters.polls > 20 && counters.wakes >= 5, "the counters");

    put(failures == 0 ? "Everything was as expected" : "Something was not as expected");
    end_line();
    return failures != 0;
}
