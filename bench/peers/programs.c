/*
 * Costs of processes, threads, signals, memory and files for programs that know of no other system than Linux.
 *
 * The same binary is measured on Linux and on COPS. Each figure is the mean of many repetitions, in nanoseconds of a
 * machine on which an instruction takes one.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FEW = 100, MANY = 2000, PAGES = 4096, LARGE = 512 << 20, GROUPS = 2, PAIRS = 5, MESSAGES = 100 };

static void report(const char *id, uint64_t start, double count)
{
	figure(id, (now_ns() - start) / count, "instructions");
}

static void wait_for(int process)
{
	int status = 0;
	if (waitpid(process, &status, 0) != process || status != 0)
		fail("a child");
}

static void fork_and_exit(void)
{
	int process = check(fork(), "fork");
	if (process == 0)
		_exit(0);
	wait_for(process);
}

static void measure_processes(const char *self)
{
	char *arguments[] = { (char *)self, "end", NULL }, *environment[] = { NULL };
	uint64_t start = now_ns();
	for (int turn = 0; turn < FEW; turn++)
		fork_and_exit();
	report("fork_exit", start, FEW);

	start = now_ns();
	for (int turn = 0; turn < FEW; turn++) {
		int process = check(fork(), "fork");
		if (process == 0) {
			execve(self, arguments, environment);
			_exit(1);
		}
		wait_for(process);
	}
	report("fork_exec", start, FEW);

	start = now_ns();
	for (int turn = 0; turn < FEW; turn++) {
		pid_t process;
		if (posix_spawn(&process, self, NULL, NULL, arguments, environment) != 0)
			fail("posix_spawn");
		wait_for(process);
	}
	report("posix_spawn", start, FEW);

	char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	madvise(memory, LARGE, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < LARGE; at += PAGES)
		memory[at] = 1;
	start = now_ns();
	for (int turn = 0; turn < 3; turn++)
		fork_and_exit();
	report("fork_512_mib", start, 3);
	munmap(memory, LARGE);
}

static int there[2], back[2];

static void echo(int turns)
{
	char byte;
	for (int turn = 0; turn < turns; turn++)
		if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
			fail("a pipe");
}

static void *echo_in_thread(void *argument)
{
	echo(MANY);
	return argument;
}

static void ping(int turns)
{
	char byte = 0;
	for (int turn = 0; turn < turns; turn++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			fail("a pipe");
}

static void *yield(void *argument)
{
	for (int turn = 0; turn < MANY; turn++)
		sched_yield();
	return argument;
}

static void *nothing(void *argument)
{
	return argument;
}

static void measure_switches(void)
{
	check(pipe(there), "pipe");
	check(pipe(back), "pipe");
	int process = check(fork(), "fork");
	if (process == 0) {
		echo(MANY);
		_exit(0);
	}
	uint64_t start = now_ns();
	ping(MANY);
	report("pipe_pingpong", start, MANY);
	wait_for(process);

	unsigned long thread;
	start_thread(&thread, -1, echo_in_thread, NULL);
	start = now_ns();
	ping(MANY);
	report("pipe_pingpong_threads", start, MANY);
	pthread_join(thread, NULL);

	start_thread(&thread, -1, yield, NULL);
	start = now_ns();
	yield(NULL);
	pthread_join(thread, NULL);
	report("context_switch", start, 2 * MANY);

	start = now_ns();
	for (int turn = 0; turn < FEW; turn++) {
		start_thread(&thread, -1, nothing, NULL);
		pthread_join(thread, NULL);
	}
	report("thread_create", start, FEW);
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
	(void)number;
	handled++;
}

static void measure_signals(void)
{
	struct sigaction action = { .sa_handler = handle };
	sigaction(SIGHUP, &action, NULL);
	uint64_t start = now_ns();
	for (int turn = 0; turn < MANY; turn++)
		raise(SIGHUP);
	report("signal_handler", start, MANY);
	if (handled != MANY)
		fail("signals were lost");
}

static void measure_memory(void)
{
	size_t length = (size_t)MANY * PAGES;
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	madvise(memory, length, MADV_NOHUGEPAGE);
	uint64_t start = now_ns();
	for (size_t at = 0; at < length; at += PAGES)
		memory[at] = 1;
	report("mmap_fault", start, MANY);
	munmap(memory, length);
}

static void measure_files(const char *self)
{
	char bytes[64];
	uint64_t start = now_ns();
	for (int turn = 0; turn < MANY; turn++) {
		int file = check(open(self, O_RDONLY | O_CLOEXEC), "open");
		if (read(file, bytes, sizeof bytes) != sizeof bytes)
			fail("read");
		close(file);
	}
	report("open_read_close", start, MANY);
	start = now_ns();
	for (int turn = 0; turn < MANY; turn++)
		now_ns();
	report("clock_gettime", start, MANY);
}

/* Senders and receivers as of the scheduler's test of that name: each sender writes to each receiver of its group. */
static void hackbench(void)
{
	int processes[GROUPS * 2 * PAIRS], count = 0;
	char message[100] = { 0 };
	for (int group = 0; group < GROUPS; group++) {
		int sockets[PAIRS][2];
		for (int pair = 0; pair < PAIRS; pair++)
			check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[pair]), "socketpair");
		for (int pair = 0; pair < PAIRS; pair++) {
			int process = processes[count++] = check(fork(), "fork");
			if (process)
				continue;
			for (size_t left = sizeof message * PAIRS * MESSAGES; left;)
				left -= check(read(sockets[pair][0], message, sizeof message), "read");
			_exit(0);
		}
		for (int pair = 0; pair < PAIRS; pair++) {
			int process = processes[count++] = check(fork(), "fork");
			if (process)
				continue;
			for (int turn = 0; turn < MESSAGES; turn++)
				for (int other = 0; other < PAIRS; other++)
					if (write(sockets[other][1], message, sizeof message) != sizeof message)
						fail("write");
			_exit(0);
		}
		for (int pair = 0; pair < PAIRS; pair++) {
			close(sockets[pair][0]);
			close(sockets[pair][1]);
		}
	}
	while (count > 0)
		wait_for(processes[--count]);
}

void measure_programs(int count, char **arguments)
{
	const char *self = count > 0 ? arguments[0] : "/init";
	measure_signals();
	measure_memory();
	measure_files(self);
	measure_switches();
	measure_processes(self);
	uint64_t start = now_ns();
	hackbench();
	report("hackbench", start, GROUPS * PAIRS * PAIRS * MESSAGES);
}
