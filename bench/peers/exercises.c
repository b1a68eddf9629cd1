/*
 * The exercises of tests/linux and tests/disk, run by Linux as apps/linux-init runs them on COPS: by the same files, with
 * the same lines before and after each.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define PATHS "/etc/cops/exercises"
#define ENVIRONMENT "/etc/cops/environment"
#define LONG "/exercises/long/"

/* Longest times of an exercise, in seconds; as in apps/linux-init. */
enum { LIMIT = 300, LONG_LIMIT = 7000 };
enum { MAXIMUM_STRINGS = 200, MAXIMUM_BYTES = 16384, MAXIMUM_FILES = 1024, NOT_STARTED = 127 };

/* The strings of a file, each with a NUL behind it, and NULL behind the last. */
static char **strings(const char *path)
{
	static char bytes[2][MAXIMUM_BYTES];
	static char *lists[2][MAXIMUM_STRINGS + 1];
	static int used;
	char *text = bytes[used], **list = lists[used];
	used++;
	int file = check(open(path, O_RDONLY | O_CLOEXEC), path);
	long length = check(read(file, text, MAXIMUM_BYTES - 1), path);
	close(file);
	int count = 0;
	for (char *next = text; next < text + length && count < MAXIMUM_STRINGS; next += strlen(next) + 1)
		list[count++] = next;
	list[count] = NULL;
	return list;
}

/* What programs expect beside the files of the archive. */
static void prepare_files(void)
{
	mkdir("/dev/pts", 0755);
	check(mount("devpts", "/dev/pts", "devpts", 0, "mode=620,ptmxmode=666"), "/dev/pts");
	mkdir("/dev/shm", 01777);
	check(mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"), "/dev/shm");
	check(mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777"), "/tmp");
	symlink("/proc/self/fd", "/dev/fd");
	symlink("/proc/self/fd/0", "/dev/stdin");
	symlink("/proc/self/fd/1", "/dev/stdout");
	symlink("/proc/self/fd/2", "/dev/stderr");
}

/* Makes the volume on the first disk the root. */
static void change_root(void)
{
	mount_first_disk();
	check(mount("proc", VOLUME "/proc", "proc", 0, NULL), "/proc");
	check(mount("sysfs", VOLUME "/sys", "sysfs", 0, NULL), "/sys");
	check(mount("devtmpfs", VOLUME "/dev", "devtmpfs", 0, NULL), "/dev");
	check(chdir(VOLUME), VOLUME);
	check(mount(".", "/", NULL, MS_MOVE, NULL), "the root");
	check(chroot("."), "the root");
	check(chdir("/"), "/");
}

/* Becomes an exercise, in an empty directory that has its name. */
static _Noreturn void become(char *path, char **environment)
{
	char directory[256];
	snprintf(directory, sizeof directory, "/tmp/%s", strrchr(path, '/') + 1);
	check(mkdir(directory, 0755), directory);
	check(chdir(directory), directory);
	struct rlimit files = { MAXIMUM_FILES, MAXIMUM_FILES * MAXIMUM_FILES };
	setrlimit(RLIMIT_NOFILE, &files);
	/* From the background, where the signal for that would stop it. */
	setpgid(0, 0);
	signal(SIGTTOU, SIG_IGN);
	tcsetpgrp(0, getpid());
	signal(SIGTTOU, SIG_DFL);
	signal(SIGPIPE, SIG_DFL);
	char *arguments[] = { path, NULL };
	execve(path, arguments, environment);
	printf("peers: %s cannot be started: %s\n", path, strerror(errno));
	fflush(stdout);
	_exit(NOT_STARTED);
}

static void run(char *path, char **environment)
{
	printf("exercise %s\n", path);
	fflush(stdout);
	int process = check(fork(), "fork"), status = 0;
	if (process == 0)
		become(path, environment);
	int limit = strncmp(path, LONG, strlen(LONG)) ? LIMIT : LONG_LIMIT;
	for (uint64_t end = now_ns() + limit * UINT64_C(1000000000); waitpid(process, &status, WNOHANG) != process;) {
		if (now_ns() > end) {
			kill(-process, SIGKILL);
			waitpid(process, NULL, 0);
			printf("\nended %s hung\n", path);
			return;
		}
		usleep(20000);
	}
	printf("\nended %s %d\n", path, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

void run_exercises(int is_on_disk)
{
	if (is_on_disk)
		change_root();
	prepare_files();
	/* A session with the serial line as its terminal, as the one of COPS's first process. */
	check(setsid(), "setsid");
	int terminal = check(open("/dev/ttyS0", O_RDWR), "/dev/ttyS0");
	check(ioctl(terminal, TIOCSCTTY, 0), "the terminal");
	for (int descriptor = 0; descriptor < 3; descriptor++)
		dup2(terminal, descriptor);
	if (terminal > 2)
		close(terminal);
	umask(022);
	char **paths = strings(PATHS), **environment = strings(ENVIRONMENT);
	for (; *paths; paths++)
		run(*paths, environment);
	printf("exercises done\n");
	fflush(stdout);
}
