/*
 * The matrix server with epoll: one loop, or a loop on each hart with the connections dealt out in turn. And a server that
 * sends back what it receives, in the same way.
 *
 * For each request of a connection that sends one after the other: epoll_wait, one read, one write. What a socket does
 * not take is kept and sent when it is writable; until then nothing more is read from it.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256 };

struct connection {
	int fd;
	/* Takes what has come and leaves what is to be sent; -1 ends the connection. */
	int (*answer)(struct connection *);
	int writing;
	unsigned char *in;
	size_t in_size, in_length;
	unsigned char *out;
	size_t out_size, out_length, out_sent;
};

struct loop {
	int epoll;
	/* The loop that accepts, and all loops, to deal connections out; NULL in the others. */
	struct loop *all;
	int count, next;
	int listener;
	int (*answer)(struct connection *);
};

static void *grow(void *bytes, size_t *size, size_t needed)
{
	if (*size >= needed)
		return bytes;
	*size = needed > 2048 ? needed : 2048;
	bytes = realloc(bytes, *size);
	if (!bytes)
		fail("memory");
	return bytes;
}

/* Sends what is left; -1 if the connection is gone. */
static int flush(struct connection *connection)
{
	while (connection->out_sent < connection->out_length) {
		ssize_t count = send(connection->fd, connection->out + connection->out_sent,
				     connection->out_length - connection->out_sent, MSG_NOSIGNAL);
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return errno == EAGAIN ? 0 : -1;
		connection->out_sent += count;
	}
	connection->out_sent = connection->out_length = 0;
	return 0;
}

/* Answers the whole requests that are there; -1 if one of them is none. */
static int answer_matrices(struct connection *connection)
{
	size_t start = 0;
	for (;;) {
		size_t have = connection->in_length - start;
		long needed = request_length(connection->in + start, have);
		if (needed < 0)
			return -1;
		if (needed == 0 || (size_t)needed > have) {
			if (start > 0)
				memmove(connection->in, connection->in + start, have);
			connection->in_length = have;
			connection->in = grow(connection->in, &connection->in_size, needed);
			return 0;
		}
		connection->out = grow(connection->out, &connection->out_size,
				       connection->out_length + needed);
		connection->out_length += answer_request(connection->in + start,
							 connection->out + connection->out_length);
		start += needed;
	}
}

static int echo(struct connection *connection)
{
	size_t length = connection->out_length + connection->in_length;
	connection->out = grow(connection->out, &connection->out_size, length);
	memcpy(connection->out + connection->out_length, connection->in, connection->in_length);
	connection->out_length = length;
	connection->in_length = 0;
	return 0;
}

/* -1 if the connection is to be closed. */
static int serve_ready(int epoll, struct connection *connection)
{
	if (!connection->writing) {
		connection->in = grow(connection->in, &connection->in_size, 2048);
		ssize_t count = recv(connection->fd, connection->in + connection->in_length,
				     connection->in_size - connection->in_length, 0);
		if (count < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -1;
		if (count == 0)
			return -1;
		connection->in_length += count;
		if (connection->answer(connection) < 0)
			return -1;
	}
	if (flush(connection) < 0)
		return -1;
	int writing = connection->out_length > 0;
	if (writing != connection->writing) {
		struct epoll_event event = { .events = writing ? EPOLLOUT : EPOLLIN, .data.ptr = connection };
		check(epoll_ctl(epoll, EPOLL_CTL_MOD, connection->fd, &event), "epoll_ctl");
		connection->writing = writing;
	}
	return 0;
}

static void accept_one(struct loop *loop)
{
	int fd = accept4(loop->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	struct connection *connection = calloc(1, sizeof *connection);
	if (!connection)
		fail("memory");
	connection->fd = fd;
	connection->answer = loop->answer;
	struct loop *target = &loop->all[loop->next];
	loop->next = (loop->next + 1) % loop->count;
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = connection };
	check(epoll_ctl(target->epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

static void *run(void *argument)
{
	struct loop *loop = argument;
	struct epoll_event events[EVENTS];
	for (;;) {
		int count = epoll_wait(loop->epoll, events, EVENTS, -1);
		for (int index = 0; index < count; index++) {
			struct connection *connection = events[index].data.ptr;
			if (!connection) {
				accept_one(loop);
			} else if (serve_ready(loop->epoll, connection) < 0) {
				close(connection->fd);
				free(connection->in);
				free(connection->out);
				free(connection);
			}
		}
	}
	return NULL;
}

static void serve(int port, int count, int (*answer)(struct connection *))
{
	struct loop *loops = calloc(count, sizeof *loops);
	for (int index = 0; index < count; index++)
		loops[index].epoll = check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
	loops[0].all = loops;
	loops[0].count = count;
	loops[0].answer = answer;
	loops[0].listener = listen_on(port);
	struct epoll_event event = { .events = EPOLLIN };
	check(epoll_ctl(loops[0].epoll, EPOLL_CTL_ADD, loops[0].listener, &event), "epoll_ctl");
	for (int index = 1; index < count; index++)
		start_thread(NULL, index, run, &loops[index]);
	run(&loops[0]);
}

void serve_epoll(int port)
{
	serve(port, 1, answer_matrices);
}

void serve_epoll_on_each_hart(int port)
{
	serve(port, harts(), answer_matrices);
}

void serve_echo(int port)
{
	serve(port, harts(), echo);
}
