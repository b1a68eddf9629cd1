/*
 * The matrix server with threads: one for each connection, or three joined by queues, as in the papers' ktut.
 *
 * With three, one thread receives requests, one multiplies, one sends, and two short queues join them. The queues wait
 * in two ways: on a condition, which is how one writes it; or by trying again after sched_yield, which is how the
 * papers' system does it.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A connection's received bytes, from `start` to `end`. */
struct input {
	unsigned char *bytes;
	size_t size, start, end;
};

/* Waits until a whole request is there. Its length, or 0 if there will be none. */
static size_t next_request(int fd, struct input *input)
{
	for (;;) {
		size_t have = input->end - input->start;
		long needed = request_length(input->bytes + input->start, have);
		if (needed < 0)
			return 0;
		if (needed > 0 && (size_t)needed <= have)
			return needed;
		if (input->start > 0) {
			memmove(input->bytes, input->bytes + input->start, have);
			input->start = 0;
			input->end = have;
		}
		if (input->size < (size_t)needed || input->size == 0) {
			input->size = needed > 2048 ? needed : 2048;
			input->bytes = realloc(input->bytes, input->size);
			if (!input->bytes)
				fail("memory");
		}
		ssize_t count = read(fd, input->bytes + have, input->size - have);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return 0;
		input->end += count;
	}
}

static void *serve_one(void *argument)
{
	int fd = (int)(intptr_t)argument;
	struct input input = { 0 };
	/* Only the pages that are used become memory. */
	void *answer = malloc(MAXIMUM_ANSWER);
	size_t length;
	if (!answer)
		fail("memory");
	while ((length = next_request(fd, &input)) > 0) {
		unsigned char *message = input.bytes + input.start;
		input.start += length;
		if (write_all(fd, answer, answer_request(message, answer)) < 0)
			break;
	}
	free(answer);
	free(input.bytes);
	close(fd);
	return NULL;
}

static void accept_for_ever(int port, void (*serve)(int fd))
{
	int listener = listen_on(port);
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
			usleep(5000);
		else if (fd >= 0)
			serve(fd);
	}
}

static void start_one(int fd)
{
	start_thread(NULL, -1, serve_one, (void *)(intptr_t)fd);
}

void serve_threads(int port)
{
	accept_for_ever(port, start_one);
}

enum { QUEUE = 8 };

/* A message, and an end of the queue as a message without bytes. */
struct message {
	void *bytes;
	size_t length;
};

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct message messages[QUEUE];
	unsigned first, count;
	int closed;
	int yields;
};

/* Waits, in the queue's way, for `count` to be something else than `unwanted`; with the lock held. */
static void wait_while(struct queue *queue, unsigned unwanted)
{
	while (queue->count == unwanted && !queue->closed) {
		if (!queue->yields) {
			pthread_cond_wait(&queue->changed, &queue->lock);
			continue;
		}
		pthread_mutex_unlock(&queue->lock);
		sched_yield();
		pthread_mutex_lock(&queue->lock);
	}
}

static void changed(struct queue *queue)
{
	int yields = queue->yields;
	pthread_mutex_unlock(&queue->lock);
	if (!yields)
		pthread_cond_broadcast(&queue->changed);
}

/* Whether the message was taken over. */
static int put(struct queue *queue, struct message message)
{
	pthread_mutex_lock(&queue->lock);
	wait_while(queue, QUEUE);
	int open = !queue->closed;
	if (open)
		queue->messages[(queue->first + queue->count++) % QUEUE] = message;
	changed(queue);
	return open;
}

/* Whether there was another message. */
static int take(struct queue *queue, struct message *message)
{
	pthread_mutex_lock(&queue->lock);
	wait_while(queue, 0);
	int some = queue->count > 0;
	if (some) {
		*message = queue->messages[queue->first];
		queue->first = (queue->first + 1) % QUEUE;
		queue->count--;
	}
	changed(queue);
	return some;
}

static void close_queue(struct queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->closed = 1;
	changed(queue);
}

struct connection {
	int fd;
	struct queue requests, answers;
	atomic_int users;
};

static void leave(struct connection *connection)
{
	if (atomic_fetch_sub(&connection->users, 1) > 1)
		return;
	struct message message;
	while (take(&connection->requests, &message) || take(&connection->answers, &message))
		free(message.bytes);
	close(connection->fd);
	free(connection);
}

static void *receive(void *argument)
{
	struct connection *connection = argument;
	struct input input = { 0 };
	size_t length;
	while ((length = next_request(connection->fd, &input)) > 0) {
		struct message message = { malloc(length), length };
		if (!message.bytes)
			fail("memory");
		memcpy(message.bytes, input.bytes + input.start, length);
		input.start += length;
		if (!put(&connection->requests, message)) {
			free(message.bytes);
			break;
		}
	}
	free(input.bytes);
	close_queue(&connection->requests);
	leave(connection);
	return NULL;
}

static void *handle(void *argument)
{
	struct connection *connection = argument;
	struct message request;
	while (take(&connection->requests, &request)) {
		/* An answer is shorter than its request. */
		struct message answer = { malloc(request.length), 0 };
		if (!answer.bytes)
			fail("memory");
		answer.length = answer_request(request.bytes, answer.bytes);
		free(request.bytes);
		if (!put(&connection->answers, answer)) {
			free(answer.bytes);
			break;
		}
	}
	close_queue(&connection->requests);
	close_queue(&connection->answers);
	leave(connection);
	return NULL;
}

static void *send_answers(void *argument)
{
	struct connection *connection = argument;
	struct message message;
	while (take(&connection->answers, &message)) {
		int sent = write_all(connection->fd, message.bytes, message.length);
		free(message.bytes);
		if (sent < 0)
			break;
	}
	/* Ends the receiver too, which may wait for bytes that nobody would answer. */
	shutdown(connection->fd, SHUT_RDWR);
	close_queue(&connection->answers);
	leave(connection);
	return NULL;
}

static void start_three(int fd, int yields)
{
	struct connection *connection = calloc(1, sizeof *connection);
	if (!connection)
		fail("memory");
	connection->fd = fd;
	atomic_init(&connection->users, 3);
	struct queue *queues[] = { &connection->requests, &connection->answers };
	for (int index = 0; index < 2; index++) {
		pthread_mutex_init(&queues[index]->lock, NULL);
		pthread_cond_init(&queues[index]->changed, NULL);
		queues[index]->yields = yields;
	}
	start_thread(NULL, -1, receive, connection);
	start_thread(NULL, -1, handle, connection);
	start_thread(NULL, -1, send_answers, connection);
}

static void start_waiting(int fd)
{
	start_three(fd, 0);
}

static void start_yielding(int fd)
{
	start_three(fd, 1);
}

void serve_three_threads(int port)
{
	accept_for_ever(port, start_waiting);
}

void serve_three_threads_yielding(int port)
{
	accept_for_ever(port, start_yielding);
}
