/*
 * The ring experiments with POSIX threads, and one job on several threads.
 *
 * Experiment A: N threads, numbered from 1, share a counter; each waits until the counter is its number and then counts
 * on. Experiment B: N threads and N + 1 pipes; each reads from the pipe before it and writes to the one behind it. Threads
 * wait in two ways: `yield` tries again after sched_yield, as in the papers; `wait` blocks (on a futex, or in read). In B
 * there is also one thread with epoll instead of all of them.
 *
 * The time runs from before the first thread is made to after the last one has ended, as in the papers.
 *
 *     ring-counter VARIANTS LIMIT_MS TASKS...          yield, wait
 *     ring-pipes VARIANTS BYTES LIMIT_MS TASKS...      yield, wait, epoll
 *     workers JOBS SIZE                                a pool of 1 to 8 threads
 *
 * Variants are separated by commas; sizes that would take longer than the limit are left out.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

enum waiting { YIELD, WAIT, EPOLL };

static enum waiting parse(const char *text)
{
	if (!strcmp(text, "yield"))
		return YIELD;
	if (!strcmp(text, "wait"))
		return WAIT;
	if (!strcmp(text, "epoll"))
		return EPOLL;
	errno = EINVAL;
	fail(text);
}

static enum waiting waiting;

/* A word of its own for each thread, for the waiting way: whose turn it is. */
struct turn {
	_Atomic uint32_t mine;
};

static _Atomic uint32_t counter;
static struct turn *turns;
static uint32_t tasks;

static void futex(_Atomic uint32_t *word, int operation, uint32_t value)
{
	syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void pass_to(uint32_t number)
{
	if (number > tasks)
		return;
	atomic_store(&turns[number].mine, 1);
	futex(&turns[number].mine, FUTEX_WAKE, 1);
}

static void *count_on(void *argument)
{
	uint32_t number = (uintptr_t)argument;
	if (waiting == YIELD) {
		while (atomic_load(&counter) != number)
			sched_yield();
		atomic_fetch_add(&counter, 1);
		return NULL;
	}
	while (!atomic_load(&turns[number].mine))
		futex(&turns[number].mine, FUTEX_WAIT, 0);
	if (atomic_fetch_add(&counter, 1) != number)
		fail("the counter is wrong");
	pass_to(number + 1);
	return NULL;
}

static uint64_t run_counter(uint32_t count)
{
	unsigned long *threads = calloc(count, sizeof *threads);
	turns = calloc(count + 2, sizeof *turns);
	tasks = count;
	atomic_store(&counter, 0);
	uint64_t start = now_ns();
	for (uint32_t index = 0; index < count; index++)
		start_thread(&threads[index], -1, count_on, (void *)(uintptr_t)(index + 1));
	atomic_store(&counter, 1);
	if (waiting == WAIT)
		pass_to(1);
	for (uint32_t index = 0; index < count; index++)
		pthread_join(threads[index], NULL);
	uint64_t time = now_ns() - start;
	if (atomic_load(&counter) != count + 1)
		fail("the counter is wrong");
	free(threads);
	free(turns);
	return time;
}

static size_t bytes;
static int (*pipes)[2];

/* Reads the whole message. */
static void read_message(int fd, char *message)
{
	size_t have = 0;
	while (have < bytes) {
		ssize_t count = read(fd, message + have, bytes - have);
		if (count > 0)
			have += count;
		else if (count < 0 && errno == EAGAIN)
			sched_yield();
		else
			fail("reading from a pipe");
	}
}

static void *pass_on(void *argument)
{
	uint32_t index = (uintptr_t)argument;
	char message[4096];
	read_message(pipes[index][0], message);
	check(write_all(pipes[index + 1][1], message, bytes), "writing to a pipe");
	return NULL;
}

static void pass_on_with_epoll(uint32_t count)
{
	struct epoll_event events[64];
	char message[4096];
	int epoll = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	for (uint32_t index = 0; index < count; index++) {
		struct epoll_event event = { .events = EPOLLIN, .data.u32 = index };
		check(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[index][0], &event), "epoll_ctl");
	}
	char first[4096];
	memset(first, 'x', bytes);
	check(write_all(pipes[0][1], first, bytes), "writing to a pipe");
	for (uint32_t passed = 0; passed < count;) {
		int ready = epoll_wait(epoll, events, 64, -1);
		for (int index = 0; index < ready; index++) {
			uint32_t pipe = events[index].data.u32;
			read_message(pipes[pipe][0], message);
			check(write_all(pipes[pipe + 1][1], message, bytes), "writing to a pipe");
			passed++;
		}
	}
	close(epoll);
}

static uint64_t run_pipes(uint32_t count)
{
	unsigned long *threads = calloc(count, sizeof *threads);
	pipes = calloc(count + 1, sizeof *pipes);
	uint64_t start = now_ns();
	for (uint32_t index = 0; index <= count; index++) {
		check(pipe2(pipes[index], O_CLOEXEC), "pipe2");
		if (waiting != WAIT)
			fcntl(pipes[index][0], F_SETFL, O_NONBLOCK);
	}
	char first[4096], last[4096] = { 0 };
	memset(first, 'x', bytes);
	if (waiting == EPOLL) {
		pass_on_with_epoll(count);
		read_message(pipes[count][0], last);
	} else {
		for (uint32_t index = 0; index < count; index++)
			start_thread(&threads[index], -1, pass_on, (void *)(uintptr_t)index);
		check(write_all(pipes[0][1], first, bytes), "writing to a pipe");
		read_message(pipes[count][0], last);
		for (uint32_t index = 0; index < count; index++)
			pthread_join(threads[index], NULL);
	}
	for (uint32_t index = 0; index <= count; index++) {
		close(pipes[index][0]);
		close(pipes[index][1]);
	}
	uint64_t time = now_ns() - start;
	if (memcmp(first, last, bytes))
		fail("the message has changed");
	free(threads);
	free(pipes);
	return time;
}

static int compare(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
	return (a > b) - (a < b);
}

/* The middle of several runs, where they are short: what else the kernel has to do would be too large a part. */
static uint64_t median(uint64_t (*run)(uint32_t), uint32_t size)
{
	uint64_t times[5];
	int count = size <= 100 ? 5 : size <= 1000 ? 3 : 1;
	for (int index = 0; index < count; index++)
		times[index] = run(size);
	qsort(times, count, sizeof times[0], compare);
	return times[count / 2];
}

/* One series over the numbers of tasks; the first run, which touches what the others use, does not count. */
static void measure(const char *id, double limit_ns, int count, char **arguments, uint64_t (*run)(uint32_t))
{
	double points[64][2];
	int measured = 0;
	run(1);
	for (int index = 0; index < count && index < 64; index++) {
		uint32_t size = atoi(arguments[index]);
		if (measured > 0) {
			double growth = size / points[measured - 1][0];
			/* Who tries again does so while each of the others has its turn. */
			if (points[measured - 1][1] * growth * (waiting == YIELD ? growth : 1) > limit_ns)
				break;
		}
		points[measured][0] = size;
		points[measured++][1] = median(run, size);
	}
	series(id, "ns", "tasks", points, measured);
}

static void need(int count, int least)
{
	if (count < least) {
		errno = EINVAL;
		fail("too few arguments");
	}
}

void measure_ring_counter(int count, char **arguments)
{
	need(count, 3);
	for (char *rest = arguments[0], *name; (name = strsep(&rest, ","));) {
		waiting = parse(name);
		measure(name, atof(arguments[1]) * 1e6, count - 2, arguments + 2, run_counter);
	}
}

void measure_ring_pipes(int count, char **arguments)
{
	need(count, 4);
	bytes = atoi(arguments[1]);
	if (bytes < 1 || bytes > 4096) {
		errno = EINVAL;
		fail("bytes");
	}
	for (char *rest = arguments[0], *name; (name = strsep(&rest, ","));) {
		waiting = parse(name);
		measure(name, atof(arguments[2]) * 1e6, count - 3, arguments + 3, run_pipes);
	}
}

/* The job of `workers`: pieces that threads take from one counter. */
static _Atomic uint32_t next_piece;
static uint32_t pieces, piece_size;

static void *work(void *argument)
{
	uint32_t sum = 0;
	while (atomic_fetch_add(&next_piece, 1) < pieces) {
		for (uint32_t step = 0; step < piece_size; step++)
			sum = sum * 1664525 + 1013904223;
		sched_yield();
	}
	atomic_fetch_add((_Atomic uint32_t *)argument, sum | 1);
	return NULL;
}

void measure_workers(int count, char **arguments)
{
	double points[8][2];
	need(count, 2);
	pieces = atoi(arguments[0]);
	piece_size = atoi(arguments[1]);
	for (int workers = 1; workers <= 8; workers++) {
		_Atomic uint32_t result = 0;
		unsigned long threads[8];
		atomic_store(&next_piece, 0);
		uint64_t start = now_ns();
		for (int index = 0; index < workers; index++)
			start_thread(&threads[index], -1, work, &result);
		for (int index = 0; index < workers; index++)
			pthread_join(threads[index], NULL);
		points[workers - 1][0] = workers;
		points[workers - 1][1] = now_ns() - start;
	}
	series("pthread", "ns", "workers", points, 8);
}
