/*
 * The matrix server with io_uring: one ring, or a ring on each hart with the connections dealt out in turn.
 *
 * Requests to the kernel are queued while completions are worked off, and handed over by the same io_uring_enter that
 * waits for the next ones. Accepting is one request for all connections; the accepted ones reach other rings as messages.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ENTRIES = 1024 };

/* What a completion is for: the low bits of its number; the rest is the connection's address. */
enum { RECEIVED, SENT, ACCEPTED, GIVEN, HANDED_OVER, PURPOSES = 8 };

struct connection {
	int fd;
	size_t in_size, in_length;
	size_t out_size, out_length, out_sent;
	unsigned char *in, *out;
} __attribute__((aligned(PURPOSES)));

struct ring {
	int fd;
	unsigned tail, submitted;
	_Atomic unsigned *sq_head, *sq_tail, *cq_head, *cq_tail;
	unsigned *sq_array;
	unsigned sq_mask, cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

struct shared {
	int listener, count, next;
	struct ring *rings;
	pthread_barrier_t ready;
};

struct part {
	struct shared *shared;
	int index;
};

static void set_up(struct ring *ring)
{
	struct io_uring_params parameters = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE,
		.cq_entries = 8 * ENTRIES,
	};
	ring->fd = check(syscall(SYS_io_uring_setup, ENTRIES, &parameters), "io_uring_setup");
	size_t sq = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
	size_t cq = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
	int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
	/* One mapping has both rings in every kernel that has the flags above. */
	char *memory = mmap(NULL, sq > cq ? sq : cq, protection, flags, ring->fd, IORING_OFF_SQ_RING);
	ring->sqes = mmap(NULL, parameters.sq_entries * sizeof(struct io_uring_sqe), protection, flags, ring->fd,
			  IORING_OFF_SQES);
	if (memory == MAP_FAILED || ring->sqes == MAP_FAILED)
		fail("mapping a ring");
	ring->sq_head = (void *)(memory + parameters.sq_off.head);
	ring->sq_tail = (void *)(memory + parameters.sq_off.tail);
	ring->sq_array = (void *)(memory + parameters.sq_off.array);
	ring->sq_mask = *(unsigned *)(memory + parameters.sq_off.ring_mask);
	ring->cq_head = (void *)(memory + parameters.cq_off.head);
	ring->cq_tail = (void *)(memory + parameters.cq_off.tail);
	ring->cq_mask = *(unsigned *)(memory + parameters.cq_off.ring_mask);
	ring->cqes = (void *)(memory + parameters.cq_off.cqes);
}

static void enter(struct ring *ring, unsigned wait)
{
	atomic_store_explicit(ring->sq_tail, ring->tail, memory_order_release);
	long count = syscall(SYS_io_uring_enter, ring->fd, ring->tail - ring->submitted, wait, IORING_ENTER_GETEVENTS,
			     NULL, 0);
	if (count < 0 && errno != EINTR && errno != EBUSY && errno != EAGAIN)
		fail("io_uring_enter");
	if (count > 0)
		ring->submitted += count;
}

static struct io_uring_sqe *request(struct ring *ring, int operation, int fd, void *connection, int purpose)
{
	while (ring->tail - atomic_load_explicit(ring->sq_head, memory_order_acquire) > ring->sq_mask)
		enter(ring, 0);
	unsigned place = ring->tail++ & ring->sq_mask;
	struct io_uring_sqe *sqe = &ring->sqes[place];
	ring->sq_array[place] = place;
	memset(sqe, 0, sizeof *sqe);
	sqe->opcode = operation;
	sqe->fd = fd;
	sqe->user_data = (uintptr_t)connection | purpose;
	return sqe;
}

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

static void receive(struct ring *ring, struct connection *connection)
{
	struct io_uring_sqe *sqe = request(ring, IORING_OP_RECV, connection->fd, connection, RECEIVED);
	connection->in = grow(connection->in, &connection->in_size, 2048);
	sqe->addr = (uintptr_t)(connection->in + connection->in_length);
	sqe->len = connection->in_size - connection->in_length;
}

static void send_rest(struct ring *ring, struct connection *connection)
{
	struct io_uring_sqe *sqe = request(ring, IORING_OP_SEND, connection->fd, connection, SENT);
	sqe->addr = (uintptr_t)(connection->out + connection->out_sent);
	sqe->len = connection->out_length - connection->out_sent;
	sqe->msg_flags = MSG_NOSIGNAL;
}

static void end(struct connection *connection)
{
	close(connection->fd);
	free(connection->in);
	free(connection->out);
	free(connection);
}

static void start(struct ring *ring, int fd)
{
	struct connection *connection = aligned_alloc(16, (sizeof *connection + 15) & ~15ul);
	if (!connection)
		fail("memory");
	memset(connection, 0, sizeof *connection);
	connection->fd = fd;
	receive(ring, connection);
}

static void received(struct ring *ring, struct connection *connection, int count)
{
	if (count <= 0) {
		end(connection);
		return;
	}
	connection->in_length += count;
	size_t start = 0;
	for (;;) {
		size_t have = connection->in_length - start;
		long needed = request_length(connection->in + start, have);
		if (needed < 0) {
			end(connection);
			return;
		}
		if (needed == 0 || (size_t)needed > have) {
			if (start > 0)
				memmove(connection->in, connection->in + start, have);
			connection->in_length = have;
			connection->in = grow(connection->in, &connection->in_size, needed);
			break;
		}
		connection->out = grow(connection->out, &connection->out_size, connection->out_length + needed);
		connection->out_length += answer_request(connection->in + start,
							 connection->out + connection->out_length);
		start += needed;
	}
	if (connection->out_length > 0)
		send_rest(ring, connection);
	else
		receive(ring, connection);
}

static void sent(struct ring *ring, struct connection *connection, int count)
{
	if (count <= 0) {
		end(connection);
		return;
	}
	connection->out_sent += count;
	if (connection->out_sent < connection->out_length) {
		send_rest(ring, connection);
		return;
	}
	connection->out_sent = connection->out_length = 0;
	receive(ring, connection);
}

static void accept_all(struct ring *ring, int listener)
{
	struct io_uring_sqe *sqe = request(ring, IORING_OP_ACCEPT, listener, NULL, ACCEPTED);
	sqe->ioprio = IORING_ACCEPT_MULTISHOT;
}

static void accepted(struct shared *shared, struct ring *ring, const struct io_uring_cqe *cqe)
{
	if (cqe->res >= 0) {
		struct ring *target = &shared->rings[shared->next];
		shared->next = (shared->next + 1) % shared->count;
		if (target == ring) {
			start(ring, cqe->res);
		} else {
			struct io_uring_sqe *sqe = request(ring, IORING_OP_MSG_RING, target->fd, NULL, HANDED_OVER);
			sqe->len = cqe->res;
			sqe->off = GIVEN;
		}
	}
	if (!(cqe->flags & IORING_CQE_F_MORE))
		accept_all(ring, shared->listener);
}

static void *run(void *argument)
{
	struct part *part = argument;
	struct shared *shared = part->shared;
	struct ring *ring = &shared->rings[part->index];
	set_up(ring);
	pthread_barrier_wait(&shared->ready);
	if (part->index == 0)
		accept_all(ring, shared->listener);
	for (;;) {
		enter(ring, 1);
		unsigned head = atomic_load_explicit(ring->cq_head, memory_order_relaxed);
		unsigned tail = atomic_load_explicit(ring->cq_tail, memory_order_acquire);
		for (; head != tail; head++) {
			const struct io_uring_cqe *cqe = &ring->cqes[head & ring->cq_mask];
			void *connection = (void *)(uintptr_t)(cqe->user_data & ~(uint64_t)(PURPOSES - 1));
			switch (cqe->user_data & (PURPOSES - 1)) {
			case RECEIVED:
				received(ring, connection, cqe->res);
				break;
			case SENT:
				sent(ring, connection, cqe->res);
				break;
			case ACCEPTED:
				accepted(shared, ring, cqe);
				break;
			case GIVEN:
				start(ring, cqe->res);
				break;
			default:
				break;
			}
		}
		atomic_store_explicit(ring->cq_head, head, memory_order_release);
	}
	return NULL;
}

static void serve(int port, int count)
{
	struct shared shared = { .count = count, .listener = listen_on(port) };
	shared.rings = calloc(count, sizeof *shared.rings);
	struct part *parts = calloc(count, sizeof *parts);
	pthread_barrier_init(&shared.ready, NULL, count);
	for (int index = count - 1; index >= 0; index--) {
		parts[index] = (struct part){ &shared, index };
		if (index > 0)
			start_thread(NULL, index, run, &parts[index]);
	}
	run(&parts[0]);
}

void serve_io_uring(int port)
{
	serve(port, 1);
}

void serve_io_uring_on_each_hart(int port)
{
	serve(port, harts());
}
