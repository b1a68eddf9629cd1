/*
 * Servers as Debian or Go builds them: what a request takes, from inside the machine and from outside; how long the
 * requests of one wait beside a greedy neighbour; and the kernel's memory for a thread that waits.
 *
 *     bench servers                 over loopback, with the client in this process
 *     bench flood                   the latency of redis alone, for a machine whose card is flooded or is not
 *     serve-program NAME            one of them until the machine ends, and the machine's clock on CLOCK_PORT; also
 *                                   `matrix`, the system's own fastest matrix server, `crowded`, it beside one with
 *                                   epoll on CROWD_PORT, and `bulk`, which moves many bytes
 *
 * The client keeps CONNECTIONS requests under way: it sends one over each connection, and then takes all answers. Each
 * answer must be as long as the first one and end as it did.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLOCK_PORT = 7100, BULK_PORT = 7200, CROWD_PORT = 7300, CONNECTIONS = 8, ROUNDS = 250, LATENCIES = 5000, THREADS = 2000, GREEDY = 19 };
/* Longest silence, in milliseconds, within an answer; and the longest answer. */
enum { SILENCE = 200, MOST = 4096 };

struct program {
	const char *name;
	int port;
	char *arguments[12];
	/* Sent once, before the requests. */
	const char *before;
	const char *request;
};

#define DIRECTORY "/tmp/peers"
#define BODY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde"
#define GET "GET /file HTTP/1.1\r\nHost: cops\r\nUser-Agent: peers\r\nAccept: */*\r\n\r\n"

static const struct program PROGRAMS[] = {
	{ "redis_get", 6379,
	  { "/usr/bin/redis-server", "--port", "6379", "--save", "", "--protected-mode", "no", "--dir", DIRECTORY, NULL },
	  "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$63\r\n" BODY "\r\n", "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n" },
	{ "nginx_small", 8080, { "/usr/sbin/nginx", "-p", DIRECTORY, "-c", DIRECTORY "/conf", NULL }, NULL, GET },
	{ "go_http", 8081, { "/usr/bin/go-http", "8081", DIRECTORY "/www/file", NULL }, NULL, GET },
	{ NULL, 0, { NULL }, NULL, NULL },
};

static const char CONFIGURATION[] =
	"user root; worker_processes 1; daemon off; pid " DIRECTORY "/pid; error_log " DIRECTORY "/error warn;\n"
	"events { worker_connections 256; }\n"
	"http { access_log off; sendfile on; keepalive_requests 1000000; server_tokens off; default_type text/plain;\n"
	"    client_body_temp_path " DIRECTORY "/body; proxy_temp_path " DIRECTORY "/proxy;\n"
	"    fastcgi_temp_path " DIRECTORY "/fcgi; uwsgi_temp_path " DIRECTORY "/uwsgi; scgi_temp_path " DIRECTORY "/scgi;\n"
	"    server { listen 8080; root " DIRECTORY "/www; } }\n";

static void make_file(const char *path, const void *bytes, size_t length)
{
	int file = check(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), path);
	if (write_all(file, bytes, length))
		fail(path);
	close(file);
}

static void make_files(void)
{
	mkdir("/tmp", 0777);
	mkdir(DIRECTORY, 0755);
	mkdir(DIRECTORY "/www", 0755);
	make_file(DIRECTORY "/conf", CONFIGURATION, sizeof CONFIGURATION - 1);
	char contents[1024];
	memset(contents, 'x', sizeof contents);
	make_file(DIRECTORY "/www/file", contents, sizeof contents);
}

static int reach(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"), one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		return fd;
	close(fd);
	return -1;
}

static int start_program(const struct program *program)
{
	static char *environment[] = { "PATH=/usr/sbin:/usr/bin", "HOME=/root", NULL };
	int process = check(fork(), "fork");
	if (process == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int log = check(open(DIRECTORY "/log", O_WRONLY | O_CREAT | O_APPEND, 0644), DIRECTORY "/log");
		dup2(log, 1);
		dup2(log, 2);
		signal(SIGPIPE, SIG_DFL);
		execve(program->arguments[0], program->arguments, environment);
		_exit(127);
	}
	for (;;) {
		int fd = reach(program->port);
		if (fd >= 0) {
			close(fd);
			return process;
		}
		if (waitpid(process, NULL, WNOHANG) == process)
			fail(program->name);
		usleep(10000);
	}
}

static void stop_program(int process)
{
	kill(process, SIGTERM);
	waitpid(process, NULL, 0);
}

/* Takes an answer of unknown length: it ends where the server falls silent. */
static size_t first_answer(int fd, char *bytes)
{
	size_t length = 0;
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	while (length < MOST && poll(&wait, 1, length ? SILENCE : 10000) == 1) {
		long more = check(read(fd, bytes + length, MOST - length), "an answer");
		if (more == 0)
			fail("a connection was closed");
		length += more;
	}
	if (length == 0 || length == MOST || bytes[0] == '-')
		fail("an answer makes no sense");
	return length;
}

static char expected[MOST];
static size_t expected_length;

static void send_request(int fd, const char *request)
{
	if (write_all(fd, request, strlen(request)))
		fail("a request");
}

/* The head of an answer of HTTP has a date, so only the last quarter is compared. */
static void take_answer(int fd)
{
	char bytes[MOST];
	for (size_t length = 0; length < expected_length;) {
		long more = check(read(fd, bytes + length, expected_length - length), "an answer");
		if (more == 0)
			fail("a connection was closed");
		length += more;
	}
	size_t compared = expected_length / 4;
	if (memcmp(bytes + expected_length - compared, expected + expected_length - compared, compared))
		fail("an answer is wrong");
}

/* Opens connections and learns the answer. */
static void begin(const struct program *program, int *connections, int count)
{
	for (int number = 0; number < count; number++) {
		int fd = connections[number] = check(reach(program->port), program->name);
		if (number == 0 && program->before) {
			send_request(fd, program->before);
			first_answer(fd, expected);
		}
		send_request(fd, program->request);
		if (number == 0)
			expected_length = first_answer(fd, expected);
		else
			take_answer(fd);
	}
}

static void finish(int *connections, int count)
{
	while (count > 0)
		close(connections[--count]);
}

static void rounds(const struct program *program, int *connections, int count, int turns)
{
	for (int turn = 0; turn < turns; turn++) {
		for (int number = 0; number < count; number++)
			send_request(connections[number], program->request);
		for (int number = 0; number < count; number++)
			take_answer(connections[number]);
	}
}

static void measure_requests(const struct program *program)
{
	int process = start_program(program), connections[CONNECTIONS];
	static const int COUNTS[] = { 1, CONNECTIONS };
	for (int which = 0; which < 2; which++) {
		int count = COUNTS[which], turns = ROUNDS * CONNECTIONS / count;
		begin(program, connections, count);
		rounds(program, connections, count, turns / 4);
		uint64_t start = now_ns();
		rounds(program, connections, count, turns);
		char id[64];
		snprintf(id, sizeof id, which ? "%s_%d" : "%s", program->name, count);
		figure(id, (double)(now_ns() - start) / ((double)turns * count), "instructions");
		finish(connections, count);
	}
	stop_program(process);
}

static int by_size(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

/* The time that one of a hundred requests exceeds. */
static double p99(const struct program *program)
{
	static uint64_t times[LATENCIES];
	int connection;
	begin(program, &connection, 1);
	rounds(program, &connection, 1, LATENCIES / 10);
	for (int turn = 0; turn < LATENCIES; turn++) {
		uint64_t start = now_ns();
		rounds(program, &connection, 1, 1);
		times[turn] = now_ns() - start;
	}
	finish(&connection, 1);
	qsort(times, LATENCIES, sizeof times[0], by_size);
	return times[LATENCIES * 99 / 100];
}

static void measure_neighbour(void)
{
	const struct program *program = &PROGRAMS[0];
	int process = start_program(program);
	double alone = p99(program);
	int neighbour = check(fork(), "fork");
	if (neighbour == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		check(setpriority(PRIO_PROCESS, 0, GREEDY), "setpriority");
		for (volatile uint64_t turns = 0;; turns++)
			;
	}
	/* Until it spins. */
	usleep(20000);
	double beside = p99(program);
	kill(neighbour, SIGKILL);
	waitpid(neighbour, NULL, 0);
	stop_program(process);
	figure("nice_p99_alone", alone, "ns");
	figure("nice_p99_beside", beside, "ns");
}

/* The latency of a server, on a machine whose network card may be flooded from outside. */
void measure_flood(int count, char **arguments)
{
	(void)count;
	(void)arguments;
	make_files();
	int process = start_program(&PROGRAMS[0]);
	figure("flood_p99", p99(&PROGRAMS[0]), "ns");
	figure("flood_uptime", now_ns(), "ns");
	stop_program(process);
}

/* Memory that is neither free nor this process's pages. */
static double kernel_bytes(void)
{
	static const char FREE[] = "MemFree:", RESIDENT[] = "VmRSS:";
	return -1024 * (number_in("/proc/meminfo", FREE) + number_in("/proc/self/status", RESIDENT));
}

static int gate[2];

static void *wait_at_the_gate(void *argument)
{
	char byte;
	if (read(gate[0], &byte, 1) != 1)
		fail("the gate");
	return argument;
}

static void start_threads(unsigned long *threads, int count)
{
	for (int number = 0; number < count; number++)
		start_thread(&threads[number], -1, wait_at_the_gate, NULL);
	/* All of them have come to the gate. */
	usleep(500000);
}

/* The first thread has the C library load and allocate what all have together. */
static void measure_threads(void)
{
	static unsigned long threads[THREADS];
	static char bytes[THREADS];
	check(pipe(gate), "pipe");
	start_threads(threads, 1);
	double before = kernel_bytes();
	start_threads(threads + 1, THREADS - 1);
	figure("blocked_pthread_bytes", (kernel_bytes() - before) / (THREADS - 1), "bytes");
	if (write_all(gate[1], bytes, THREADS))
		fail("the gate");
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
}

void measure_servers(int count, char **arguments)
{
	(void)count;
	(void)arguments;
	make_files();
	measure_threads();
	for (const struct program *program = PROGRAMS; program->name; program++)
		measure_requests(program);
	measure_neighbour();
}

/* Tells each visitor the machine's time and how much of it was idle, both in nanoseconds. */
_Noreturn static void tell_time(int port)
{
	int listener = listen_on(port);
	for (;;) {
		int visitor = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (visitor < 0)
			continue;
		char text[64];
		uint64_t idle = idle_ns();
		int length = snprintf(text, sizeof text, "%llu %llu\n", (unsigned long long)now_ns(), (unsigned long long)idle);
		write_all(visitor, text, length);
		shutdown(visitor, SHUT_WR);
		close(visitor);
	}
}

/* The matrix server of COPS where it is, or else the one with epoll. */
static void serve_matrix(void)
{
	static char *arguments[] = { "/usr/bin/matrix-server", "--backlog", "1024", "--workers", "1", NULL };
	static char *environment[] = { NULL };
	execve(arguments[0], arguments, environment);
	SERVERS[find_server("epoll")].serve(FIRST_PORT);
}

/*
 * Takes or gives as many bytes as a visitor says: a letter, r to receive them and then answer one byte, s to send them,
 * and their number as a little-endian word.
 */
static void serve_bulk(void)
{
	static char bytes[64 << 10];
	int listener = listen_on(BULK_PORT);
	for (;;) {
		int visitor = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		char order[9];
		size_t known = 0;
		while (visitor >= 0 && known < sizeof order) {
			long more = read(visitor, order + known, sizeof order - known);
			if (more <= 0)
				break;
			known += more;
		}
		uint64_t left = 0;
		memcpy(&left, order + 1, sizeof left);
		if (known < sizeof order)
			left = 0;
		while (left > 0) {
			size_t part = left < sizeof bytes ? left : sizeof bytes;
			long moved = order[0] == 'r' ? read(visitor, bytes, part) : write(visitor, bytes, part);
			if (moved <= 0)
				break;
			left -= moved;
		}
		if (known == sizeof order && left == 0 && order[0] == 'r')
			write_all(visitor, bytes, 1);
		close(visitor);
	}
}

/* Serves in a process of its own; the machine's clock is told as soon as somebody listens. */
_Noreturn static void serve_by(void (*serve)(void), int port)
{
	if (check(fork(), "fork") == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		open_many_files();
		serve();
		_exit(127);
	}
	int probe;
	for (; (probe = reach(port)) < 0; usleep(10000))
		if (waitpid(-1, NULL, WNOHANG) > 0)
			fail("the server");
	/* A server that has one visitor at a time is free for the next. */
	close(probe);
	printf("peers: serving\n");
	fflush(stdout);
	tell_time(CLOCK_PORT);
}

void serve_program(const char *name)
{
	if (!strcmp(name, "matrix"))
		serve_by(serve_matrix, FIRST_PORT);
	if (!strcmp(name, "crowded")) {
		if (check(fork(), "fork") == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			open_many_files();
			serve_epoll(CROWD_PORT);
			_exit(127);
		}
		serve_by(serve_matrix, FIRST_PORT);
	}
	if (!strcmp(name, "bulk"))
		serve_by(serve_bulk, BULK_PORT);
	make_files();
	for (const struct program *program = PROGRAMS; program->name; program++) {
		if (strcmp(program->name, name))
			continue;
		start_program(program);
		int connection;
		/* redis has its value before the first visitor comes. */
		begin(program, &connection, 1);
		close(connection);
		printf("peers: serving\n");
		fflush(stdout);
		tell_time(CLOCK_PORT);
	}
	errno = EINVAL;
	fail(name);
}
