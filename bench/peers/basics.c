/*
 * What the basic operations cost: calls, pipes, switches, wake-ups, threads and processes.
 *
 * Each figure is the mean of many repetitions. Switches and wake-ups are measured between two threads on one hart, so
 * that each is exactly one hand-over.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS = 5000, THREADS = 200 };

static int there[2], back[2];

static void *echo_pipe(void *argument)
{
	char byte;
	(void)argument;
	for (int turn = 0; turn < TURNS; turn++)
		if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
			fail("a pipe");
	return NULL;
}

static void *echo_event(void *argument)
{
	uint64_t value;
	(void)argument;
	for (int turn = 0; turn < TURNS; turn++)
		if (read(there[0], &value, 8) != 8 || write(back[0], &value, 8) != 8)
			fail("an eventfd");
	return NULL;
}

static void *yield(void *argument)
{
	(void)argument;
	for (int turn = 0; turn < TURNS; turn++)
		sched_yield();
	return NULL;
}

static _Atomic uint32_t ball;

static void play(uint32_t mine)
{
	for (int turn = 0; turn < TURNS; turn++) {
		while (atomic_load(&ball) != mine)
			syscall(SYS_futex, &ball, FUTEX_WAIT_PRIVATE, !mine, NULL, NULL, 0);
		atomic_store(&ball, !mine);
		syscall(SYS_futex, &ball, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
}

static void *play_other(void *argument)
{
	(void)argument;
	play(1);
	return NULL;
}

static pthread_t main_thread;

static void *echo_signal(void *argument)
{
	sigset_t set;
	int number;
	(void)argument;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	for (int turn = 0; turn < TURNS; turn++) {
		sigwait(&set, &number);
		pthread_kill(main_thread, SIGUSR2);
	}
	return NULL;
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
	(void)number;
	handled++;
}

static void *nothing(void *argument)
{
	return argument;
}

static void report(const char *id, uint64_t start, double count)
{
	figure(id, (now_ns() - start) / count, "ns");
}

void measure_basics(int count, char **arguments)
{
	(void)count;
	(void)arguments;
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(0, &one);
	check(sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");

	uint64_t start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		syscall(SYS_getppid);
	report("null", start, TURNS);

	start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		now_ns();
	report("clock", start, TURNS);

	static char message[4096];
	check(pipe(there), "pipe");
	for (size_t size = 1; size <= sizeof message; size *= 4096) {
		start = now_ns();
		for (int turn = 0; turn < TURNS; turn++)
			if (write(there[1], message, size) != (ssize_t)size || read(there[0], message, size) != (ssize_t)size)
				fail("a pipe");
		report(size == 1 ? "pipe-1" : "pipe-4096", start, TURNS);
	}

	unsigned long thread;
	start_thread(&thread, 0, yield, NULL);
	start = now_ns();
	yield(NULL);
	pthread_join(thread, NULL);
	report("switch-yield", start, 2 * TURNS);

	start_thread(&thread, 0, play_other, NULL);
	start = now_ns();
	play(0);
	pthread_join(thread, NULL);
	report("switch-futex", start, 2 * TURNS);

	check(pipe(back), "pipe");
	start_thread(&thread, 0, echo_pipe, NULL);
	start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		if (write(there[1], message, 1) != 1 || read(back[0], message, 1) != 1)
			fail("a pipe");
	pthread_join(thread, NULL);
	report("wake-pipe", start, 2 * TURNS);
	for (int end = 0; end < 2; end++) {
		close(there[end]);
		close(back[end]);
	}

	there[0] = check(eventfd(0, 0), "eventfd");
	back[0] = check(eventfd(0, 0), "eventfd");
	start_thread(&thread, 0, echo_event, NULL);
	uint64_t value = 1;
	start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		if (write(there[0], &value, 8) != 8 || read(back[0], &value, 8) != 8)
			fail("an eventfd");
	pthread_join(thread, NULL);
	report("wake-eventfd", start, 2 * TURNS);

	sigset_t set;
	int number;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sigdelset(&set, SIGUSR1);
	main_thread = pthread_self();
	start_thread(&thread, 0, echo_signal, NULL);
	start = now_ns();
	for (int turn = 0; turn < TURNS; turn++) {
		pthread_kill(thread, SIGUSR1);
		sigwait(&set, &number);
	}
	pthread_join(thread, NULL);
	report("wake-signal", start, 2 * TURNS);

	struct sigaction action = { .sa_handler = handle };
	sigaction(SIGHUP, &action, NULL);
	start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		raise(SIGHUP);
	report("signal-handler", start, TURNS);
	if (handled != TURNS)
		fail("signals were lost");

	start = now_ns();
	for (int turn = 0; turn < THREADS; turn++) {
		start_thread(&thread, 0, nothing, NULL);
		pthread_join(thread, NULL);
	}
	report("thread", start, THREADS);

	start = now_ns();
	for (int turn = 0; turn < THREADS; turn++) {
		int process = check(fork(), "fork");
		if (process == 0)
			_exit(0);
		waitpid(process, NULL, 0);
	}
	report("fork", start, THREADS);
}
