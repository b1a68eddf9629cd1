/*
 * Load from inside the machine, where instructions are counted: client, server and network are then all in one figure.
 *
 * One thread with epoll drives all connections, each a closed loop: a request, its answer, the next request. Questions
 * and products are computed before the clock starts, and every answer is compared with its product. The client of COPS's
 * `bench` does the same, with the same questions.
 *
 *     matrix SERVERS ORDER REQUESTS CONNECTIONS...     time of each request, for each server and number of connections
 *     creation SERVERS ORDER REQUESTS VISITORS...      the same with a connection for each request
 *
 * SERVERS are separated by commas; REQUESTS is how many there are in all for each point.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { QUESTIONS = 16, EVENTS = 256 };

static unsigned char *requests[QUESTIONS], *answers[QUESTIONS];
static size_t request_size, answer_size;

static void prepare_questions(uint32_t order)
{
	request_size = request_bytes(order);
	answer_size = answer_bytes(order);
	uint32_t seed = order;
	for (int question = 0; question < QUESTIONS; question++) {
		uint32_t *request = malloc(request_size);
		answers[question] = malloc(answer_size);
		requests[question] = (unsigned char *)request;
		if (!request || !answers[question])
			fail("memory");
		request[0] = order;
		request[1] = 0;
		for (uint32_t element = 0; element < 2 * order * order; element++) {
			seed = seed * 1664525 + 1013904223;
			request[2 + element] = seed >> 8;
		}
		answer_request(request, answers[question]);
	}
}

struct slot {
	int fd;
	uint32_t sequence, left;
	int question;
	size_t received;
	unsigned char *answer;
};

struct outcome {
	uint64_t right, wrong, lost;
};

static int port_of(const char *server)
{
	return FIRST_PORT + find_server(server);
}

static int open_connection(int port)
{
	int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
	return fd;
}

static void ask(struct slot *slot)
{
	slot->question = slot->sequence % QUESTIONS;
	uint32_t *request = (uint32_t *)requests[slot->question];
	request[1] = slot->sequence;
	slot->received = 0;
	check(write_all(slot->fd, request, request_size), "sending a request");
}

/* Whether the whole answer has come; counts it. */
static int take_answer(struct slot *slot, struct outcome *outcome)
{
	ssize_t count = recv(slot->fd, slot->answer + slot->received, answer_size - slot->received, 0);
	if (count <= 0)
		fail("an answer did not come");
	slot->received += count;
	if (slot->received < answer_size)
		return 0;
	const uint32_t *header = (const uint32_t *)slot->answer;
	const unsigned char *product = answers[slot->question];
	int right = header[0] == *(const uint32_t *)product && header[1] == slot->sequence &&
		    !memcmp(slot->answer + HEADER_BYTES, product + HEADER_BYTES, answer_size - HEADER_BYTES);
	outcome->right += right;
	outcome->wrong += !right;
	slot->sequence++;
	slot->left--;
	return 1;
}

static void watch(int epoll, struct slot *slot)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = slot };
	check(epoll_ctl(epoll, EPOLL_CTL_ADD, slot->fd, &event), "epoll_ctl");
}

/* Each slot asks `count` times, on one connection or on a fresh one each time (`port` > 0). The time it takes. */
static uint64_t drive(int epoll, struct slot *slots, int connections, uint32_t count, int port, struct outcome *outcome)
{
	struct epoll_event events[EVENTS];
	int busy = connections;
	uint64_t start = now_ns();
	for (int index = 0; index < connections; index++) {
		slots[index].left = count;
		if (port > 0) {
			slots[index].fd = open_connection(port);
			watch(epoll, &slots[index]);
		}
		ask(&slots[index]);
	}
	while (busy > 0) {
		int ready = epoll_wait(epoll, events, EVENTS, -1);
		for (int index = 0; index < ready; index++) {
			struct slot *slot = events[index].data.ptr;
			if (!take_answer(slot, outcome))
				continue;
			if (port > 0) {
				close(slot->fd);
				if (slot->left > 0) {
					slot->fd = open_connection(port);
					watch(epoll, slot);
				}
			}
			if (slot->left > 0)
				ask(slot);
			else
				busy--;
		}
	}
	return now_ns() - start;
}

static void close_all(struct slot *slots, int connections)
{
	for (int index = 0; index < connections; index++) {
		close(slots[index].fd);
		free(slots[index].answer);
	}
	free(slots);
}

/* The cost of a request with so many connections, to a server that is started for it. */
static double measure_one(const char *name, int connections, int repetitions, int fresh, struct outcome *outcome)
{
	int index = find_server(name), server = start_server(index);
	if (server < 0) {
		errno = ENOENT;
		fail(name);
	}
	int port = port_of(name);
	int epoll = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	struct slot *slots = calloc(connections, sizeof *slots);
	for (int slot = 0; slot < connections; slot++) {
		slots[slot].answer = malloc(answer_size);
		if (!fresh) {
			slots[slot].fd = open_connection(port);
			watch(epoll, &slots[slot]);
		}
	}
	/* Buffers grow, and pages come. */
	drive(epoll, slots, connections, 4, fresh ? port : 0, outcome);
	uint64_t time = drive(epoll, slots, connections, repetitions, fresh ? port : 0, outcome);
	outcome->lost += (uint64_t)connections * (repetitions + 4);
	close(epoll);
	if (fresh)
		free(slots);
	else
		close_all(slots, connections);
	stop_server(index, server);
	return (double)time / connections / repetitions;
}

static void measure_with_client(int count, char **arguments, int fresh)
{
	double points[32][2];
	if (count < 4 || count > 32) {
		errno = EINVAL;
		fail("SERVERS ORDER REQUESTS CONNECTIONS...");
	}
	prepare_questions(atoi(arguments[1]));
	int total = atoi(arguments[2]);
	struct outcome outcome = { 0 };
	char *rest = arguments[0];
	for (char *name; (name = strsep(&rest, ","));) {
		for (int index = 3; index < count; index++) {
			int connections = atoi(arguments[index]);
			int repetitions = total / connections > 8 ? total / connections : 8;
			points[index - 3][0] = connections;
			points[index - 3][1] = measure_one(name, connections, repetitions, fresh, &outcome);
		}
		series(name, "ns", "connections", points, count - 3);
	}
	figure("wrong", outcome.wrong, "answers");
	figure("lost", outcome.lost - outcome.right - outcome.wrong, "answers");
}

void measure_matrix(int count, char **arguments)
{
	measure_with_client(count, arguments, 0);
}

void measure_creation(int count, char **arguments)
{
	measure_with_client(count, arguments, 1);
}
