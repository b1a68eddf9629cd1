/*
 * Files on a disk with ext4: what the operations on them cost.
 *
 *     disk cached    operations that need no disk, and whole pieces of work without their waits, each by its mean
 *     disk waiting   reads and writes that wait for the disk, by time
 *     disk faults    memory of the kernel for threads that wait for pages of a mapping, of a disk that is slow
 *
 * The first disk of the machine has the volume, with a file `big` in it. The same binary is measured on Linux and on
 * COPS.
 */
#define _GNU_SOURCE
#include "peers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define DISK "/dev/vda"

enum { PAGE = 4096, PAGES = 256, TURNS = 4000, MAPPINGS = 20, NAMES = 500 };
/* The tree: directories, files in each, and the bytes of the largest. */
enum { DIRECTORIES = 50, FILES = 100, LARGEST = 16 << 10 };
/* The database: pages that it has, transactions, and pages that each changes. */
enum { DATABASE = 512, TRANSACTIONS = 100, CHANGED = 8 };
/* Reads of `big`: threads, reads of each, bytes of a piece in order, and measurements, of which the median counts. */
enum { THREADS = 32, READS = 64, PIECE = 128 << 10, REPETITIONS = 7 };
enum { APPENDS = 200 };
/* Threads that touch a page each, so far apart that none comes with another. */
enum { TOUCHING = 96, APART = 512 << 10 };

static char page[PAGE];

/* Linux has the drivers in modules. */
static void load_modules(void)
{
	static const char *const names[] = { "crc16", "crc32c_generic", "libcrc32c", "mbcache", "jbd2", "ext4", "virtio_blk" };
	for (size_t index = 0; index < sizeof names / sizeof *names; index++) {
		char path[64];
		snprintf(path, sizeof path, "/modules/%s.ko.xz", names[index]);
		load_module(path);
	}
}

static void mount_volume(void)
{
	/* A driver that has just been loaded looks for its disks. */
	for (int turn = 0; access(DISK, F_OK) < 0 && turn < 1000; turn++)
		usleep(10000);
	check(mount(DISK, VOLUME, "ext4", 0, NULL), "mounting " DISK);
}

void mount_first_disk(void)
{
	load_modules();
	if (mkdir(VOLUME, 0755) < 0 && errno != EEXIST)
		fail(VOLUME);
	mount_volume();
}

/* Nothing of the volume is in memory then. */
static void mount_again(void)
{
	check(umount(VOLUME), "unmounting " VOLUME);
	mount_volume();
}

static void report(const char *id, uint64_t start, double count)
{
	figure(id, (now_ns() - start) / count, "instructions");
}

/* Work that waits for the disk: the machine's own account of the time in which it was idle is left out. */
static uint64_t busy_ns(void)
{
	return now_ns() - idle_ns();
}

static void report_busy(const char *id, uint64_t start, double count)
{
	figure(id, (busy_ns() - start) / count, "instructions");
}

static int make(const char *path)
{
	return check(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644), path);
}

static void write_page(int file, off_t at)
{
	if (pwrite(file, page, PAGE, at) != PAGE)
		fail("pwrite");
}

static void read_page(int file, off_t at)
{
	if (pread(file, page, PAGE, at) != PAGE)
		fail("pread");
}

static void measure_pages(void)
{
	int file = make(VOLUME "/pages");
	for (int number = 0; number < PAGES; number++)
		write_page(file, (off_t)number * PAGE);
	check(fsync(file), "fsync");
	/* An order in which no page follows its neighbour. */
	uint64_t start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		read_page(file, (off_t)(turn * 7 % PAGES) * PAGE);
	report("read_4k_cached", start, TURNS);

	start = now_ns();
	for (int turn = 0; turn < TURNS; turn++)
		write_page(file, (off_t)(turn * 7 % PAGES) * PAGE);
	report("write_4k_cached", start, TURNS);
	check(fsync(file), "fsync");

	volatile const char *bytes;
	start = now_ns();
	for (int turn = 0; turn < MAPPINGS; turn++) {
		bytes = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ, MAP_SHARED, file, 0);
		if (bytes == MAP_FAILED)
			fail("mmap");
		for (int number = 0; number < PAGES; number++)
			(void)bytes[(size_t)number * PAGE];
		munmap((void *)bytes, (size_t)PAGES * PAGE);
	}
	report("mmap_read_cached", start, MAPPINGS * PAGES);
	close(file);
}

static void measure_names(void)
{
	struct stat status;
	uint64_t start = now_ns();
	for (int turn = 0; turn < TURNS; turn++) {
		int file = check(open(VOLUME "/pages", O_RDONLY | O_CLOEXEC), "open");
		check(fstat(file, &status), "fstat");
		close(file);
	}
	report("open_stat_close", start, TURNS);

	check(mkdir(VOLUME "/names", 0755), "mkdir");
	start = now_ns();
	for (int turn = 0; turn < NAMES; turn++) {
		char path[64];
		snprintf(path, sizeof path, VOLUME "/names/file-%d", turn);
		close(make(path));
		check(unlink(path), "unlink");
	}
	report("create_unlink", start, NAMES);
}

/*
 * Transactions as SQLite makes them with a journal that it rolls back from (`journal_mode=DELETE`, `synchronous=FULL`):
 * the pages that change are written to the journal, which lasts then; the pages are written, and last; the journal is
 * removed.
 */
static void measure_database(void)
{
	int database = make(VOLUME "/database");
	for (int number = 0; number < DATABASE; number++)
		write_page(database, (off_t)number * PAGE);
	check(fsync(database), "fsync");
	uint64_t start = busy_ns();
	for (int turn = 0; turn < TRANSACTIONS; turn++) {
		int journal = make(VOLUME "/database-journal");
		if (write(journal, page, 512) != 512)
			fail("write");
		for (int change = 0; change < CHANGED; change++) {
			off_t at = (off_t)((turn * 31 + change * 61) % DATABASE) * PAGE;
			read_page(database, at);
			write_page(journal, 512 + (off_t)change * (PAGE + 8));
		}
		check(fdatasync(journal), "fdatasync");
		/* The header says that it is complete. */
		if (pwrite(journal, page, 12, 0) != 12)
			fail("pwrite");
		check(fdatasync(journal), "fdatasync");
		for (int change = 0; change < CHANGED; change++)
			write_page(database, (off_t)((turn * 31 + change * 61) % DATABASE) * PAGE);
		check(fdatasync(database), "fdatasync");
		close(journal);
		check(unlink(VOLUME "/database-journal"), "unlink");
	}
	report_busy("sqlite_speedtest", start, TRANSACTIONS);
	close(database);
}

/* Makes a tree as tar does from an archive, and has it last. */
static void measure_tree(void)
{
	static char bytes[LARGEST];
	memset(bytes, 'x', sizeof bytes);
	struct timespec times[2] = { { 1700000000, 0 }, { 1700000000, 0 } };
	char path[96];
	uint64_t start = busy_ns();
	for (int directory = 0; directory < DIRECTORIES; directory++) {
		snprintf(path, sizeof path, VOLUME "/tree-%d", directory);
		check(mkdir(path, 0700), "mkdir");
		for (int number = 0; number < FILES; number++) {
			snprintf(path, sizeof path, VOLUME "/tree-%d/a-file-of-the-tree-%d", directory, number);
			int file = check(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), path);
			size_t length = 200 + (size_t)(directory * FILES + number) * 7919 % (LARGEST - 200);
			if (write_all(file, bytes, length) < 0)
				fail("write");
			check(futimens(file, times), "futimens");
			check(fchmod(file, 0644), "fchmod");
			close(file);
		}
		snprintf(path, sizeof path, VOLUME "/tree-%d", directory);
		check(utimensat(AT_FDCWD, path, times, 0), "utimensat");
		check(chmod(path, 0755), "chmod");
	}
	sync();
	report_busy("untar_tree", start, DIRECTORIES * FILES);
}

static int big;
static off_t pages_of_big;

static void *read_here_and_there(void *argument)
{
	uint64_t state = (uintptr_t)argument * 0x9e3779b97f4a7c15u + 1;
	char *bytes = malloc(PAGE);
	for (int turn = 0; turn < READS; turn++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		off_t at = (off_t)(state >> 33) % pages_of_big * PAGE;
		if (pread(big, bytes, PAGE, at) != PAGE)
			fail("pread");
	}
	free(bytes);
	return NULL;
}

/* Opens the file, of which nothing is in memory. */
static void begin_reads(void)
{
	mount_again();
	big = check(open(VOLUME "/big", O_RDONLY | O_CLOEXEC), VOLUME "/big");
}

static double random_reads(void)
{
	begin_reads();
	posix_fadvise(big, 0, 0, POSIX_FADV_RANDOM);
	unsigned long threads[THREADS];
	uint64_t start = now_ns();
	for (uintptr_t number = 0; number < THREADS; number++)
		start_thread(&threads[number], -1, read_here_and_there, (void *)number);
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
	double rate = THREADS * READS / ((now_ns() - start) / 1e9);
	close(big);
	return rate;
}

static double sequential_read(void)
{
	static char piece[PIECE];
	begin_reads();
	size_t sum = 0;
	uint64_t start = now_ns();
	for (;;) {
		ssize_t count = check(read(big, piece, PIECE), "read");
		if (count == 0)
			break;
		sum += (size_t)count;
	}
	double rate = sum / (1024. * 1024.) / ((now_ns() - start) / 1e9);
	if (sum != (size_t)pages_of_big * PAGE)
		fail("a file's length");
	close(big);
	return rate;
}

static int compare_rates(const void *one, const void *other)
{
	double left = *(const double *)one, right = *(const double *)other;
	return (left > right) - (left < right);
}

/* The clock of an emulator's host is not regular: the median counts. */
static void report_rate(const char *id, double (*measure)(void), const char *unit)
{
	double rates[REPETITIONS];
	for (int turn = 0; turn < REPETITIONS; turn++)
		rates[turn] = measure();
	qsort(rates, REPETITIONS, sizeof *rates, compare_rates);
	figure(id, rates[REPETITIONS / 2], unit);
}

static void measure_reads(void)
{
	struct stat status;
	check(stat(VOLUME "/big", &status), VOLUME "/big");
	pages_of_big = status.st_size / PAGE;
	report_rate("random_read_32", random_reads, "reads/s");
	report_rate("sequential_read", sequential_read, "MiB/s");
}

static int compare(const void *one, const void *other)
{
	uint64_t left = *(const uint64_t *)one, right = *(const uint64_t *)other;
	return (left > right) - (left < right);
}

static void measure_appends(void)
{
	static uint64_t times[APPENDS];
	int file = make(VOLUME "/appended");
	for (int turn = 0; turn < APPENDS; turn++) {
		uint64_t start = now_ns();
		write_page(file, (off_t)turn * PAGE);
		check(fsync(file), "fsync");
		times[turn] = now_ns() - start;
	}
	qsort(times, APPENDS, sizeof *times, compare);
	figure("fsync_append_p50", times[APPENDS / 2] / 1e3, "us");
	close(file);
}

static int gate[2];
static const volatile char *mapped;
static volatile int touched;

static void *touch(void *argument)
{
	char byte;
	if (read(gate[0], &byte, 1) != 1)
		fail("the gate");
	byte = mapped[(uintptr_t)argument * APART];
	__atomic_fetch_add(&touched, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Slabs are all memory that the kernel takes beside pages of files. */
static void measure_faults(void)
{
	static unsigned long threads[TOUCHING];
	static char bytes[TOUCHING];
	static const char SLABS[] = "Slab:";
	big = check(open(VOLUME "/big", O_RDONLY | O_CLOEXEC), VOLUME "/big");
	mapped = mmap(NULL, (size_t)TOUCHING * APART, PROT_READ, MAP_SHARED, big, 0);
	if (mapped == MAP_FAILED)
		fail("mmap");
	check(pipe(gate), "pipe");
	for (uintptr_t number = 0; number < TOUCHING; number++)
		start_thread(&threads[number], -1, touch, (void *)number);
	/* All of them have come to the gate. */
	usleep(500000);
	double before = number_in("/proc/meminfo", SLABS);
	if (write_all(gate[1], bytes, TOUCHING))
		fail("the gate");
	/* All of them have touched, and few have got their page, for which the kernel has records then. */
	usleep(200000);
	double during = number_in("/proc/meminfo", SLABS);
	int waiting = TOUCHING - __atomic_load_n(&touched, __ATOMIC_RELAXED);
	if (waiting < TOUCHING * 9 / 10) {
		errno = EAGAIN;
		fail("too few threads wait for the disk");
	}
	figure("waiting_faults", waiting, "faults");
	figure("blocked_fault_bytes", (during - before) * 1024 / waiting, "bytes");
	for (int number = 0; number < TOUCHING; number++)
		pthread_join(threads[number], NULL);
	munmap((void *)mapped, (size_t)TOUCHING * APART);
	close(big);
}

void measure_disk(int count, char **arguments)
{
	const char *part = count == 1 ? arguments[0] : "";
	mount_first_disk();
	memset(page, 'p', sizeof page);
	if (!strcmp(part, "cached")) {
		measure_pages();
		measure_names();
		measure_database();
		measure_tree();
	} else if (!strcmp(part, "waiting")) {
		measure_reads();
		measure_appends();
	} else if (!strcmp(part, "faults")) {
		measure_faults();
	} else {
		errno = EINVAL;
		fail("disk cached | disk waiting | disk faults");
	}
	check(umount(VOLUME), "unmounting " VOLUME);
}
