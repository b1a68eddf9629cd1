/*
 * Linux beside COPS: the first and only program of a Linux that was booted to be measured.
 *
 * The same work as the programs of COPS do, written for Linux as one writes it when it has to be fast: the matrix server
 * in the ways that servers for Linux are built, the ring experiments with POSIX threads, and the basic costs. As process 1
 * it prepares the system (modules for the network, addresses, limits), does what its arguments say, and switches the
 * machine off:
 *
 *     serve                  every server of the list, each on a port of its own, until the machine is ended
 *     bench NAME [ARG...]    a measurement; results are lines in the shape of COPS's own program `bench`
 *     serve-program NAME     a server that Debian or Go builds, and a port with the machine's clock
 *     exercises              the exercises of tests/linux, as COPS's own program runs them
 *     exercises-on-disk      those of tests/disk, whose root is the volume on the first disk
 *     here ...               the same alone, as the first program of COPS
 *
 * The last line of a success is `peers: done`.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <net/route.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

const struct server SERVERS[] = {
	{ "epoll", serve_epoll },
	{ "epoll-each", serve_epoll_on_each_hart },
	{ "io_uring", serve_io_uring },
	{ "io_uring-each", serve_io_uring_on_each_hart },
	{ "thread", serve_threads },
	{ "thread3", serve_three_threads },
	{ "thread3-yield", serve_three_threads_yielding },
	{ "go", serve_go },
	{ "tokio", serve_tokio },
	{ "echo", serve_echo },
	{ NULL, NULL },
};

static void hold_connections(int count, char **arguments);

const struct measurement MEASUREMENTS[] = {
	{ "basics", measure_basics },
	{ "ring-counter", measure_ring_counter },
	{ "ring-pipes", measure_ring_pipes },
	{ "workers", measure_workers },
	{ "matrix", measure_matrix },
	{ "creation", measure_creation },
	{ "programs", measure_programs },
	{ "servers", measure_servers },
	{ "flood", measure_flood },
	{ "disk", measure_disk },
	{ "hold", hold_connections },
	{ NULL, NULL },
};

/* Where the kernel expects the flag for a module that is compressed; older headers lack it. */
enum { COMPRESSED_MODULE = 4 };

void load_module(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	/* Built into this kernel, so not in the archive. */
	if (file < 0 && errno == ENOENT)
		return;
	check(file, path);
	if (syscall(SYS_finit_module, file, "", COMPRESSED_MODULE) < 0 && errno != EEXIST)
		fail(path);
	close(file);
}

void open_many_files(void)
{
	struct rlimit files;
	check(getrlimit(RLIMIT_NOFILE, &files), "getrlimit");
	files.rlim_cur = files.rlim_max;
	check(setrlimit(RLIMIT_NOFILE, &files), "setrlimit");
}

static void write_file(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		return;
	/* A limit that cannot be raised shows where it is reached. */
	if (write(file, text, strlen(text)) < 0)
		fprintf(stderr, "peers: %s stays as it is\n", path);
	close(file);
}

static struct sockaddr internet(const char *text)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct sockaddr result;
	inet_pton(AF_INET, text, &address.sin_addr);
	memcpy(&result, &address, sizeof result);
	return result;
}

static void set_up_interface(int control, const char *name, const char *address, const char *mask)
{
	struct ifreq request = { 0 };
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	if (address) {
		request.ifr_addr = internet(address);
		check(ioctl(control, SIOCSIFADDR, &request), name);
		request.ifr_netmask = internet(mask);
		check(ioctl(control, SIOCSIFNETMASK, &request), name);
	}
	check(ioctl(control, SIOCGIFFLAGS, &request), name);
	request.ifr_flags |= IFF_UP | IFF_RUNNING;
	check(ioctl(control, SIOCSIFFLAGS, &request), name);
}

/* The addresses of QEMU's user network. */
static void prepare_network(void)
{
	int control = check(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
	set_up_interface(control, "lo", NULL, NULL);
	set_up_interface(control, "eth0", "10.0.2.15", "255.255.255.0");
	struct rtentry route = {
		.rt_dst = internet("0.0.0.0"),
		.rt_gateway = internet("10.0.2.2"),
		.rt_genmask = internet("0.0.0.0"),
		.rt_flags = RTF_UP | RTF_GATEWAY,
	};
	check(ioctl(control, SIOCADDRT, &route), "a route");
	close(control);
}

static void prepare(void)
{
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	check(mount("proc", "/proc", "proc", 0, NULL), "/proc");
	check(mount("sysfs", "/sys", "sysfs", 0, NULL), "/sys");
	/* Programs of Debian want it. */
	mkdir("/dev", 0755);
	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	load_module("/modules/failover.ko.xz");
	load_module("/modules/net_failover.ko.xz");
	load_module("/modules/virtio_net.ko.xz");
	load_module("/modules/virtio_mmio.ko.xz");
	write_file("/proc/sys/fs/nr_open", "1048576");
	write_file("/proc/sys/kernel/threads-max", "100000");
	write_file("/proc/sys/kernel/pid_max", "200000");
	write_file("/proc/sys/vm/max_map_count", "1000000");
	write_file("/proc/sys/net/core/somaxconn", "4096");
	write_file("/proc/sys/net/ipv4/tcp_max_syn_backlog", "4096");
	write_file("/proc/sys/net/ipv4/tcp_tw_reuse", "1");
	write_file("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000");
	/* Threads that spin are what some of the measurements are about. */
	write_file("/proc/sys/kernel/watchdog", "0");
	struct rlimit files = { 1 << 20, 1 << 20 }, threads = { RLIM_INFINITY, RLIM_INFINITY };
	setrlimit(RLIMIT_NOFILE, &files);
	setrlimit(RLIMIT_NPROC, &threads);
	prepare_network();
	/* What the kernel does after it has booted is not to be measured. */
	sleep(1);
}

int find_server(const char *name)
{
	for (int index = 0; SERVERS[index].name; index++)
		if (!strcmp(SERVERS[index].name, name))
			return index;
	errno = EINVAL;
	fail(name);
}

/* Whether somebody accepts connections on a server's port. */
static int accepts(int index)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(FIRST_PORT + index) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int probe = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	int connected = connect(probe, (struct sockaddr *)&address, sizeof address);
	close(probe);
	return connected == 0;
}

/* The matrix server with epoll in this process itself, which on COPS has no limit if it is the first one. */
static void hold_connections(int count, char **arguments)
{
	(void)count, (void)arguments;
	open_many_files();
	if (check(fork(), "fork") == 0) {
		while (!accepts(find_server("epoll")))
			usleep(10000);
		printf("peers: serving\n");
		fflush(stdout);
		_exit(0);
	}
	serve_epoll(FIRST_PORT);
}

int start_server(int index)
{
	int process = check(fork(), "fork");
	if (process == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		SERVERS[index].serve(FIRST_PORT + index);
		fail(SERVERS[index].name);
	}
	for (;;) {
		if (accepts(index))
			return process;
		if (waitpid(process, NULL, WNOHANG) == process)
			return -1;
		usleep(2000);
	}
}

void stop_server(int index, int process)
{
	kill(process, SIGKILL);
	waitpid(process, NULL, 0);
	/* The kernel takes an io_uring apart, and its listening socket with it, after the process has ended. */
	while (accepts(index))
		usleep(2000);
}

/* Every server that this archive has, each on its port. */
static void serve_all(void)
{
	for (int index = 0; SERVERS[index].name; index++)
		if (start_server(index) >= 0)
			printf("peers: %s listens on %d\n", SERVERS[index].name, FIRST_PORT + index);
	printf("peers: serving\n");
	fflush(stdout);
	for (;;)
		pause();
}

static int do_what_is_asked(int count, char **arguments)
{
	if (count >= 2 && !strcmp(arguments[1], "serve"))
		serve_all();
	if (count >= 3 && !strcmp(arguments[1], "bench"))
		for (const struct measurement *one = MEASUREMENTS; one->name; one++)
			if (!strcmp(one->name, arguments[2])) {
				one->measure(count - 3, arguments + 3);
				return 0;
			}
	if (count == 3 && !strcmp(arguments[1], "serve-program"))
		serve_program(arguments[2]);
	int is_on_disk = count == 2 && !strcmp(arguments[1], "exercises-on-disk");
	if (is_on_disk || (count == 2 && !strcmp(arguments[1], "exercises"))) {
		run_exercises(is_on_disk);
		return 0;
	}
	fprintf(stderr, "usage: peers serve | serve-program NAME | exercises | exercises-on-disk | bench NAME [ARGUMENT]...\n");
	return 2;
}

int main(int count, char **arguments)
{
	signal(SIGPIPE, SIG_IGN);
	/* It was executed only to be executed. */
	if (count == 2 && !strcmp(arguments[1], "end"))
		return 0;
	/* As the first program of another system. */
	if (count > 1 && !strcmp(arguments[1], "here"))
		return do_what_is_asked(count - 1, arguments + 1);
	if (getpid() != 1)
		return do_what_is_asked(count, arguments);
	prepare();
	/* The work is done by a child, so that its death does not become the kernel's panic. */
	int process = check(fork(), "fork");
	if (process == 0)
		exit(do_what_is_asked(count, arguments));
	int status = 0;
	/* Orphans too: programs look whether a process is still there. */
	while (waitpid(-1, &status, 0) != process)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		printf("peers: done\n");
	else
		printf("peers: ended with status %#x\n", status);
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 1;
}
