/*
 * workload.h
 *		The dead TIDs to load and the TIDs to ask for.
 */
#ifndef TIDBENCH_WORKLOAD_H
#define TIDBENCH_WORKLOAD_H

#include "postgres.h"

#include "storage/itemptr.h"

/* The post's five arguments. */
typedef struct Shape
{
	int64		blocks;			/* of the table */
	int64		dead_per_page;	/* of a page that has any */
	int64		interval;		/* every so many rows of such a page are dead */
	int64		consecutive;	/* so many pages with dead rows, */
	int64		page_interval;	/* of every so many */
} Shape;

/* Which of the index's TIDs are asked for, and in which order. */
typedef struct Sampling
{
	int64		probes;			/* 0 for all */
	uint32		seed;
	bool		shuffled;		/* else in the order of the table */
} Sampling;

typedef struct Workload
{
	MemoryContext context;
	int64		dead_count;
	ItemPointerData *dead;		/* in the order of the table */
	int64		rows_per_page;
	int64		index_count;	/* TIDs of the index: one for every row */
	int64		probe_count;
	Sampling	sampling;
	int64		expected_hits;	/* by arithmetic, and no structure's work */
} Workload;

/*
 * Both are made below the transaction's context, so that an error or a cancel
 * frees them; the caller moves them when they are done.
 */
extern Workload *workload_of_shape(const Shape *shape, const Sampling *sampling);
extern Workload *workload_of_tids(int64 blocks, int64 rows_per_page, const ItemPointerData *tids,
								  int64 count, const Sampling *sampling);

/* Probes first to first + count - 1. */
extern void make_probes(const Workload *workload, int64 first, int64 count,
						ItemPointerData *probes);

#endif
