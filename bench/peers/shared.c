/*
 * The parts that all of this program needs: messages, results, threads.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

long request_length(const void *bytes, size_t length)
{
	if (length < HEADER_BYTES)
		return 0;
	uint32_t order = *(const uint32_t *)bytes;
	if (order < 1 || order > MAXIMUM_ORDER)
		return -1;
	return request_bytes(order);
}

/*
 * Whole blocks of COLUMNS columns of a row of the product, from a column on, with the sums in registers: exactly as the
 * other systems' servers do it (lib/matrix).
 */
#define MULTIPLY_BLOCKS(COLUMNS) \
	for (; column + COLUMNS <= order; column += COLUMNS) { \
		uint32_t totals[COLUMNS] = { 0 }; \
		const uint32_t *elements = right + column; \
		for (uint32_t middle = 0; middle < order; middle++, elements += order) { \
			uint32_t factor = row[middle]; \
			_Pragma("GCC unroll 8") for (int at = 0; at < COLUMNS; at++) \
				totals[at] += factor * elements[at]; \
		} \
		_Pragma("GCC unroll 8") for (int at = 0; at < COLUMNS; at++) \
			sums[column + at] = totals[at]; \
	}

size_t answer_request(const void *request, void *answer)
{
	const uint32_t *words = request;
	uint32_t order = words[0];
	const uint32_t *row = words + 2, *right = row + order * order;
	uint32_t *sums = (uint32_t *)answer + 2;

	for (uint32_t count = 0; count < order; count++, row += order, sums += order) {
		uint32_t column = 0;
		MULTIPLY_BLOCKS(8)
		MULTIPLY_BLOCKS(4)
		MULTIPLY_BLOCKS(1)
	}
	((uint32_t *)answer)[0] = order;
	((uint32_t *)answer)[1] = words[1];
	return answer_bytes(order);
}

int write_all(int fd, const void *bytes, size_t length)
{
	const char *next = bytes;
	while (length > 0) {
		ssize_t written = write(fd, next, length);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return -1;
		next += written;
		length -= written;
	}
	return 0;
}

uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + time.tv_nsec;
}

double number_in(const char *path, const char *word)
{
	char text[4096] = { 0 };
	int file = check(open(path, O_RDONLY | O_CLOEXEC), path);
	check(read(file, text, sizeof text - 1), path);
	close(file);
	char *place = strstr(text, word);
	if (!place)
		fail(word);
	return strtod(place + strlen(word), NULL);
}

uint64_t idle_ns(void)
{
	unsigned long long waiting = 0;
	FILE *file = fopen("/proc/stat", "r");
	/* Linux counts waits for a disk apart, in hundredths of a second. */
	if (!file || fscanf(file, "cpu %*u %*u %*u %*u %llu", &waiting) < 0)
		fail("/proc/stat");
	fclose(file);
	return number_in("/proc/uptime", " ") * 1e9 + waiting * 1e7;
}

void figure(const char *id, double value, const char *unit)
{
	printf("bench: {\"id\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", id, value, unit);
	fflush(stdout);
}

void series(const char *id, const char *unit, const char *x_unit, const double (*points)[2], size_t count)
{
	printf("bench: {\"series\": \"%s\", \"unit\": \"%s\", \"x_unit\": \"%s\", \"points\": [", id, unit, x_unit);
	for (size_t index = 0; index < count; index++)
		printf("%s[%.9g, %.9g]", index ? ", " : "", points[index][0], points[index][1]);
	printf("]}\n");
	fflush(stdout);
}

void fail(const char *what)
{
	fprintf(stderr, "peers: failed: %s: %s\n", what, strerror(errno));
	fflush(stderr);
	_exit(1);
}

long check(long value, const char *what)
{
	if (value < 0)
		fail(what);
	return value;
}

void start_thread(unsigned long *thread, int hart, void *(*function)(void *), void *argument)
{
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	/* Mapped and not touched; what a thread uses of it counts. */
	pthread_attr_setstacksize(&attributes, 64 << 10);
	if (hart >= 0) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(hart, &set);
		pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
	}
	pthread_t made;
	int error = pthread_create(&made, &attributes, function, argument);
	pthread_attr_destroy(&attributes);
	if (error) {
		errno = error;
		fail("a thread");
	}
	if (thread)
		*thread = made;
	else
		pthread_detach(made);
}

int harts(void)
{
	return get_nprocs();
}

int listen_on(int port)
{
	int listener = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	int one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
	/* Accepted sockets have what their listener has. */
	setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	check(listen(listener, 4096), "listen");
	return listener;
}
