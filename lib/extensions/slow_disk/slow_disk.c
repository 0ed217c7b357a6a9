/*
 * slow_disk.c
 *		A disk of so many bytes and reads per second behind a page cache of so
 *		many pages, for the files of a server's relations.
 *
 * It is loaded by LD_PRELOAD, stands in front of the calls by which a server
 * reads, and lets each of them return when that disk would have delivered.
 * The real read happens meanwhile, so it must be the faster one.  Writes are
 * neither slowed nor cached.  Or it holds nothing back, and only adds up what
 * that disk would have taken.
 *
 * Memory that the server's processes share with the program that started them
 * holds the limits, which that program sets, and the state of the disk.  The
 * variable PGSTUDIES_SLOW_DISK has a file descriptor of that memory, a colon,
 * and the directory of the relations with a slash at its end.
 */
#define _GNU_SOURCE
#include "slow_disk.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 8192
#define TEMPORARY "pgsql_tmp"

/*
 * Requests so near the head are in its way: the processes that read for one
 * scan come in any order, and a drive sorts what it is asked for.
 */
#define NEAR_BYTES (2 * 1024 * 1024)

/* A process that waits looks so often whether it is served, and is dead if it did not. */
#define LOOKS_S 0.0002
#define DEAD_S 0.05

static Disk *disk;
static Page *pages;
static uint32_t *chains;
static char directory[4096];
static size_t directory_length;

static void map_disk(int fd);

__attribute__((constructor)) static void
begin(void)
{
	const char *told = getenv("PGSTUDIES_SLOW_DISK");
	char	   *path;
	long		fd;

	if (told == NULL)
		return;
	fd = strtol(told, &path, 10);
	if (*path == ':' && strlen(path + 1) < sizeof directory)
	{
		strcpy(directory, path + 1);
		directory_length = strlen(directory);
		map_disk((int) fd);
	}
	/* A program that the server starts has another file by that number. */
	unsetenv("PGSTUDIES_SLOW_DISK");
}

static void
map_disk(int fd)
{
	struct stat status;
	size_t		room;
	char	   *mapped;

	_Static_assert(sizeof(Disk) <= HEADER_BYTES, "the header is too small");
	if (fstat(fd, &status) != 0 || status.st_size <= HEADER_BYTES)
		return;
	mapped = mmap(NULL, (size_t) status.st_size, PROT_READ | PROT_WRITE,
				  MAP_SHARED, fd, 0);
	close(fd);
	if (mapped == MAP_FAILED)
		return;
	room = ((size_t) status.st_size - HEADER_BYTES) /
		(sizeof *pages + sizeof *chains);
	disk = (Disk *) mapped;
	pages = (Page *) (mapped + HEADER_BYTES);
	chains = (uint32_t *) (pages + room);
	if (disk->started == 0)
	{
		pthread_mutexattr_t kind;

		disk->room = room - 1;
		pthread_mutexattr_init(&kind);
		pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
		pthread_mutex_init(&disk->lock, &kind);
	}
	disk->started++;
}

static double
clock_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
}

/* The cache: the page that was used longest ago makes room.  0 is no page. */

static uint32_t *
chain_of(uint64_t file, uint64_t number)
{
	uint64_t	hash = file * 0x9E3779B97F4A7C15u + number;

	hash = (hash ^ (hash >> 31)) * 0xC2B2AE3D27D4EB4Fu;
	return &chains[(hash ^ (hash >> 29)) % disk->cache_pages];
}

static uint32_t
find(uint64_t file, uint64_t number)
{
	uint32_t	at = *chain_of(file, number);

	while (at != 0 && (pages[at].file != file || pages[at].number != number))
		at = pages[at].next;
	return at;
}

static void
take_out(uint32_t at)
{
	pages[pages[at].newer].older = pages[at].older;
	pages[pages[at].older].newer = pages[at].newer;
}

/* pages[0] is both ends of the ring from the newest to the oldest. */
static void
make_newest(uint32_t at)
{
	pages[at].newer = 0;
	pages[at].older = pages[0].older;
	pages[pages[0].older].newer = at;
	pages[0].older = at;
}

static uint32_t
make_room(void)
{
	uint32_t	oldest = pages[0].newer;
	uint32_t   *link;

	if (disk->cached < disk->cache_pages)
		return (uint32_t) ++disk->cached;
	link = chain_of(pages[oldest].file, pages[oldest].number);
	while (*link != oldest)
		link = &pages[*link].next;
	*link = pages[oldest].next;
	take_out(oldest);
	return oldest;
}

static void
put(uint64_t file, uint64_t number, double ready_s)
{
	uint32_t	at = make_room();
	uint32_t   *chain = chain_of(file, number);

	pages[at].file = file;
	pages[at].number = number;
	pages[at].ready_s = ready_s;
	pages[at].next = *chain;
	*chain = at;
	make_newest(at);
}

static void
begin_limits(uint64_t wanted)
{
	disk->cache_pages = disk->wanted_pages;
	if (disk->cache_pages == 0 || disk->cache_pages > disk->room)
		disk->cache_pages = disk->room;
	memset(chains, 0, disk->cache_pages * sizeof *chains);
	memset(&pages[0], 0, sizeof pages[0]);
	disk->cached = 0;
	disk->free_s = 0;
	disk->head_file = 0;
	disk->served = 0;
	disk->slice_ends_s = 0;
	memset(disk->waiters, 0, sizeof disk->waiters);
	disk->in_force = wanted;
}

/* The disk */

static int
is_near_head(uint64_t file, uint64_t page, int64_t before, int64_t after)
{
	int64_t		distance = (int64_t) (page - disk->head_page) * PAGE_BYTES;

	return disk->head_file == file && distance >= -before && distance <= after;
}

/* Read pages that lie side by side; the head does one thing at a time. */
static void
read_from_disk(uint64_t file, uint64_t first, uint64_t count)
{
	double		asked = clock_s();
	double		begins = asked;
	double		takes = 0;
	double		ready_s;
	int			seeks = disk->seek_s > 0 && !is_near_head(file, first, 0, 0);

	/* What follows the last read it has begun to read, if it is left to do so. */
	if (disk->bytes_per_s > 0 && disk->reads_per_s == 0 && !seeks &&
		is_near_head(file, first, NEAR_BYTES, NEAR_BYTES))
		begins -= (double) disk->drive_bytes / disk->bytes_per_s;
	if (begins < disk->free_s)
		begins = disk->free_s;
	if (disk->bytes_per_s > 0)
		takes = (double) (count * PAGE_BYTES) / disk->bytes_per_s;
	if (disk->reads_per_s > 0 && takes < 1 / disk->reads_per_s)
		takes = 1 / disk->reads_per_s;
	if (seeks)
	{
		takes += disk->seek_s;
		disk->seeks++;
	}
	disk->free_s = begins + takes;
	/* What a drive reads on by itself still has to come here. */
	ready_s = disk->latency_s +
		(disk->latency_s > 0 && disk->free_s < asked ? asked : disk->free_s);
	disk->busy_s += takes;
	disk->head_file = file;
	disk->head_page = first + count;
	disk->bytes_read += count * PAGE_BYTES;
	for (uint64_t number = first; number < first + count; number++)
		put(file, number, ready_s);
}

/* Have the missing pages of [first, end) read, in requests of a window at most. */
static void
fetch(uint64_t file, uint64_t first, uint64_t end)
{
	uint64_t	missing = 0;

	for (uint64_t number = first; number < end; number++)
	{
		if (find(file, number) == 0)
			missing++;
		else if (missing > 0)
		{
			read_from_disk(file, number - missing, missing);
			missing = 0;
		}
		if (missing == disk->window_pages)
		{
			read_from_disk(file, number + 1 - missing, missing);
			missing = 0;
		}
	}
	if (missing > 0)
		read_from_disk(file, end - missing, missing);
}

/* The scheduler: one process is served for a slice, and waited for a while. */

static int
is_served(int64_t me, uint64_t file, uint64_t page, double now)
{
	int64_t		close = (int64_t) disk->close_bytes;

	if (disk->idle_s == 0)
		return 1;
	if (now >= disk->slice_ends_s)
		return 0;
	return disk->served == me ||
		(close > 0 && is_near_head(file, page, close / 2, close));
}

/* Whether no other process has waited for longer; notes that this one waits. */
static int
is_first_in_line(int64_t me, double now)
{
	Waiter	   *own = NULL;
	double		since = now;

	for (Waiter *waiter = disk->waiters; waiter < disk->waiters + WAITERS; waiter++)
	{
		if (waiter->pid != 0 && now > waiter->seen_s + DEAD_S)
			waiter->pid = 0;
		if (waiter->pid == me || (own == NULL && waiter->pid == 0))
			own = waiter;
	}
	if (own != NULL && own->pid == me)
		since = own->since_s;
	if (own != NULL)
		*own = (Waiter) {me, since, now};
	for (Waiter *waiter = disk->waiters; waiter < disk->waiters + WAITERS; waiter++)
		if (waiter->pid != 0 && waiter->pid != me && waiter->since_s < since)
			return 0;
	return 1;
}

static void
leave_line(int64_t me)
{
	for (Waiter *waiter = disk->waiters; waiter < disk->waiters + WAITERS; waiter++)
		if (waiter->pid == me)
			waiter->pid = 0;
}

static int lock(void);

/* Wait until what is missing of [first, end) may be read, or another has read it. */
static void
wait_for_turn(uint64_t file, uint64_t first, uint64_t end)
{
	int64_t		me = getpid();
	uint64_t	wanted = disk->in_force;

	while (disk->idle_s > 0 && disk->in_force == wanted)
	{
		struct timespec nap = {0, (long) (1e9 * LOOKS_S)};
		double		now = clock_s();
		int			is_over = now >= disk->slice_ends_s ||
			now >= disk->free_s + disk->idle_s;

		while (first < end && find(file, first) != 0)
			first++;
		if (first == end || is_served(me, file, first, now))
			break;
		if (is_first_in_line(me, now) && (disk->served == 0 || is_over))
		{
			disk->slice_ends_s = (now > disk->free_s ? now : disk->free_s) +
				disk->slice_s;
			break;
		}
		pthread_mutex_unlock(&disk->lock);
		nanosleep(&nap, NULL);
		if (!lock())
			break;
	}
	if (disk->idle_s > 0)
	{
		/* Found in the cache, it is no turn of this process. */
		if (first < end)
			disk->served = me;
		leave_line(me);
	}
}

/* When the pages [first, end) of a file that ends at file_end are in memory. */
static double
use(uint64_t file, uint64_t first, uint64_t end, uint64_t file_end)
{
	uint64_t	ahead = (end - 1) / disk->window_pages + 2;
	double		ready_s = 0;

	/* Reads that follow one another have the next window read, as in Linux. */
	ahead *= disk->window_pages;
	ahead = ahead < file_end ? ahead : file_end;
	if (first < 2 || find(file, first - 1) == 0 || find(file, first - 2) == 0)
		ahead = end;
	wait_for_turn(file, first, end);
	fetch(file, first, end);
	for (uint64_t number = first; number < end; number++)
	{
		uint32_t	at = find(file, number);

		if (at == 0)			/* the cache is smaller than this read */
			continue;
		if (ready_s < pages[at].ready_s)
			ready_s = pages[at].ready_s;
		take_out(at);
		make_newest(at);
	}
	if (is_served(getpid(), file, end, clock_s()))
		fetch(file, end, ahead);
	return disk->accounts ? 0 : ready_s;
}

/* Take the lock, and begin the limits that are wanted; 0 where none are. */
static int
lock(void)
{
	uint64_t	wanted;

	if (pthread_mutex_lock(&disk->lock) == EOWNERDEAD)
	{
		pthread_mutex_consistent(&disk->lock);
		disk->in_force = 0;		/* what it left half done is begun anew */
	}
	wanted = __atomic_load_n(&disk->wanted, __ATOMIC_ACQUIRE);
	if (wanted != 0 && disk->in_force != wanted)
		begin_limits(wanted);
	return wanted != 0;
}

static int
is_limited(void)
{
	return disk != NULL &&
		__atomic_load_n(&disk->wanted, __ATOMIC_ACQUIRE) != 0;
}

static int
is_relation(int fd)
{
	char		link[40];
	char		path[sizeof directory + 64];
	ssize_t		length;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof path - 1);
	if (length < (ssize_t) directory_length)
		return 0;
	path[length] = '\0';
	return memcmp(path, directory, directory_length) == 0 &&
		strncmp(path + directory_length, TEMPORARY, strlen(TEMPORARY)) != 0;
}

/* Begin a read; returns when it is done, 0 for one that is not slowed. */
static double
begin_read(int fd, uint64_t offset, uint64_t length)
{
	struct stat status;
	uint64_t	size;
	double		ready_s = 0;

	if (!is_relation(fd) || fstat(fd, &status) != 0)
		return 0;
	size = (uint64_t) status.st_size;
	if (offset >= size || length == 0)
		return 0;
	length = length < size - offset ? length : size - offset;
	if (lock())
		ready_s = use(status.st_ino, offset / PAGE_BYTES,
					  (offset + length - 1) / PAGE_BYTES + 1,
					  (size - 1) / PAGE_BYTES + 1);
	pthread_mutex_unlock(&disk->lock);
	return ready_s;
}

static void
wait_until(double ready_s)
{
	struct timespec until;

	if (ready_s <= clock_s())
		return;
	until.tv_sec = (time_t) ready_s;
	until.tv_nsec = (long) (1e9 * (ready_s - (double) until.tv_sec));
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static uint64_t
length_of(const struct iovec *parts, int count)
{
	uint64_t	length = 0;

	for (int i = 0; i < count; i++)
		length += parts[i].iov_len;
	return length;
}

/*
 * The calls.  The disk reads while the real call does, and what comes earlier
 * than the disk would deliver is held back.
 */
#define SLOWED(name, parameters, arguments, offset, length) \
	ssize_t \
	name parameters \
	{ \
		static ssize_t (*real) parameters; \
		double		ready_s = 0; \
		ssize_t		done; \
		if (real == NULL) \
			*(void **) &real = dlsym(RTLD_NEXT, #name); \
		if (is_limited()) \
			ready_s = begin_read(fd, (uint64_t) (offset), length); \
		done = real arguments; \
		if (ready_s > 0) \
			wait_until(ready_s); \
		return done; \
	}

SLOWED(pread, (int fd, void *to, size_t length, off_t offset),
	   (fd, to, length, offset), offset, length)
SLOWED(preadv, (int fd, const struct iovec *to, int parts, off_t offset),
	   (fd, to, parts, offset), offset, length_of(to, parts))
/* Before 12, a server seeks and reads; what has no place is no relation. */
SLOWED(read, (int fd, void *to, size_t length),
	   (fd, to, length), lseek(fd, 0, SEEK_CUR), length)
#ifdef __GLIBC__
SLOWED(pread64, (int fd, void *to, size_t length, off64_t offset),
	   (fd, to, length, offset), offset, length)
SLOWED(preadv64, (int fd, const struct iovec *to, int parts, off64_t offset),
	   (fd, to, parts, offset), offset, length_of(to, parts))
#endif

/*
 * What a server says that it will need is read without waiting for it; where
 * processes take turns, not even that.
 */
int
posix_fadvise(int fd, off_t offset, off_t length, int advice)
{
	static int	(*real) (int, off_t, off_t, int);

	if (real == NULL)
		*(void **) &real = dlsym(RTLD_NEXT, "posix_fadvise");
	if (advice == POSIX_FADV_WILLNEED && is_limited() && disk->idle_s == 0)
		begin_read(fd, (uint64_t) offset, (uint64_t) length);
	return real(fd, offset, length, advice);
}
