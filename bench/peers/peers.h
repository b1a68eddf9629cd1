/*
 * What the files of this program share: results, clocks, messages, and the list of what it can do.
 */
#ifndef PEERS_H
#define PEERS_H

#include <stddef.h>
#include <stdint.h>

/* The format of lib/matrix: order, sequence number, elements; all little-endian words. */
enum { HEADER_BYTES = 8, MAXIMUM_ORDER = 64 };
enum {
	MAXIMUM_REQUEST = HEADER_BYTES + 2 * 4 * MAXIMUM_ORDER * MAXIMUM_ORDER,
	MAXIMUM_ANSWER = HEADER_BYTES + 4 * MAXIMUM_ORDER * MAXIMUM_ORDER,
};

static inline size_t request_bytes(uint32_t order) { return HEADER_BYTES + 8 * (size_t)order * order; }
static inline size_t answer_bytes(uint32_t order) { return HEADER_BYTES + 4 * (size_t)order * order; }

/*
 * The length of the request at the front of `length` bytes, which are aligned to a word: 0 if its header is not all
 * there, -1 if its order is out of range.
 */
long request_length(const void *bytes, size_t length);

/* Multiplies the matrices of a whole request; the answer lies elsewhere. Returns the answer's length. */
size_t answer_request(const void *request, void *answer);

/* Writes all bytes to a blocking descriptor; -1 if that fails. */
int write_all(int fd, const void *bytes, size_t length);

/* Nanoseconds of a clock that never goes back. */
uint64_t now_ns(void);

/* Nanoseconds in which the machine was idle, to a hundredth of a second. */
uint64_t idle_ns(void);

/* The number behind a word in a file of /proc. */
double number_in(const char *path, const char *word);

/* Lines of results, in the shape that xtask's `bench` collects. */
void figure(const char *id, double value, const char *unit);
void series(const char *id, const char *unit, const char *x_unit, const double (*points)[2], size_t count);

/* Ends the program with a line that says why. */
_Noreturn void fail(const char *what);

/* Fails with `what` unless the value, a call's result, is not negative. */
long check(long value, const char *what);

/* Starts a thread with a small stack, on any hart or on one (`hart` >= 0). */
struct thread_start;
void start_thread(unsigned long *thread, int hart, void *(*function)(void *), void *argument);

/* How many harts there are. */
int harts(void);

/* A server: serves on a listening socket for ever. */
struct server {
	const char *name;
	void (*serve)(int port);
};
extern const struct server SERVERS[];

/* The port of the first server in the list; each other one has the next. */
enum { FIRST_PORT = 7000 };

/* What is to be measured in the machine. */
struct measurement {
	const char *name;
	void (*measure)(int count, char **arguments);
};
extern const struct measurement MEASUREMENTS[];

/* Starts a server in a process of its own and returns when it accepts connections; and ends it. */
int start_server(int index);
void stop_server(int index, int process);
int find_server(const char *name);

/* Parts of MEASUREMENTS. */
void measure_basics(int count, char **arguments);
void measure_ring_counter(int count, char **arguments);
void measure_ring_pipes(int count, char **arguments);
void measure_matrix(int count, char **arguments);
void measure_creation(int count, char **arguments);
void measure_workers(int count, char **arguments);
void measure_programs(int count, char **arguments);
void measure_servers(int count, char **arguments);
void measure_flood(int count, char **arguments);
void measure_disk(int count, char **arguments);

/* Loads a module of Linux, if its file is there. */
/* Allows this process as many files as it may choose. */
void open_many_files(void);
void load_module(const char *path);

/* Serves with one of the programs that Debian or Go builds, for ever. */
void serve_program(const char *name);

/* The place of the volume on the first disk. */
#define VOLUME "/disk"

/* Mounts it. */
void mount_first_disk(void);

/*
 * Runs the exercises that the archive names, or the volume on the first disk, which is the root then; with the files and
 * the terminal that programs expect.
 */
void run_exercises(int is_on_disk);

/* Parts of SERVERS. */
void serve_threads(int port);
void serve_three_threads(int port);
void serve_three_threads_yielding(int port);
void serve_epoll(int port);
void serve_epoll_on_each_hart(int port);
void serve_io_uring(int port);
void serve_io_uring_on_each_hart(int port);
void serve_go(int port);
void serve_tokio(int port);
void serve_echo(int port);

/* A listening TCP socket. */
int listen_on(int port);

#endif
