/*
 * slow_disk.h
 *		The memory that a server's processes share with the program that
 *		started them: programs/slow_disk.py has the same layout.
 */
#ifndef SLOW_DISK_H
#define SLOW_DISK_H

#include <pthread.h>
#include <stdint.h>

#define HEADER_BYTES 4096
#define WAITERS 64

/* A process whose read is not served yet. */
typedef struct
{
	int64_t		pid;			/* 0: none */
	double		since_s;
	double		seen_s;			/* when it last said so: it may have died */
} Waiter;

typedef struct
{
	/* Set by the program, "wanted" last. */
	uint64_t	wanted;			/* the number of the limits, 0 for none */
	uint64_t	wanted_pages;	/* of the cache, 0: as there is room for */
	uint64_t	window_pages;	/* read ahead at a time */
	double		bytes_per_s;	/* 0: without limit */
	double		reads_per_s;	/* 0: without limit */
	double		seek_s;			/* to a page that is not the next, half a turn included */
	double		latency_s;		/* from a request to its answer; several may be on their way */
	double		slice_s;		/* a process is served at a time, if another waits */
	double		idle_s;			/* for its next read; 0: first come, first served */
	uint64_t	close_bytes;	/* so near the head, another's read is served, too */
	uint64_t	drive_bytes;	/* that the drive reads on by itself */
	uint64_t	accounts;		/* 1: reads are not held back, their time is added up */
	/* Set by the server's processes, under the lock. */
	uint64_t	started;		/* servers that have loaded the library */
	uint64_t	bytes_read;		/* from the disk, ever */
	uint64_t	seeks;			/* ever */
	double		busy_s;			/* that all these reads and seeks take, ever */
	uint64_t	in_force;		/* the number of the limits that the rest is of */
	uint64_t	room;			/* pages that any cache may have */
	uint64_t	cache_pages;	/* that this one may have */
	uint64_t	cached;			/* that it has */
	double		free_s;			/* when the disk has done all it was asked for */
	uint64_t	head_file;		/* where its head is then: at this page of that */
	uint64_t	head_page;		/* file */
	int64_t		served;			/* the process whose slice it is */
	double		slice_ends_s;
	Waiter		waiters[WAITERS];
	pthread_mutex_t lock;
} Disk;

/*
 * A page in the cache, by its place in the array that follows the header;
 * pages[0] is none.  After the array comes a number for each, a hash table.
 */
typedef struct
{
	uint64_t	file;
	uint64_t	number;
	double		ready_s;		/* when the disk has delivered it */
	uint32_t	next;			/* of those with the same hash */
	uint32_t	newer;
	uint32_t	older;
} Page;

#endif							/* SLOW_DISK_H */
