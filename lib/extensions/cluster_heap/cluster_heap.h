/*
 * cluster_heap.h
 *		What the trigger and the access method have in common.
 */
#ifndef CLUSTER_ORDER_H
#define CLUSTER_ORDER_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "storage/block.h"
#include "utils/rel.h"

/* Settings. */
typedef enum Neighbour
{
	NEIGHBOUR_BEFORE,
	NEIGHBOUR_AFTER,
} Neighbour;

extern int	neighbour;
extern bool check_room;
extern bool use_reserve;

/*
 * What is known of a table that rows go to, for the length of a transaction.
 */
typedef struct Clustering
{
	Oid			table;			/* hash key */
	uint64		generation;
	MemoryContext context;		/* of what is below */
	Oid			index;			/* InvalidOid if there is none to follow */
	IndexInfo  *info;
	EState	   *estate;
	bool		was_suggested;	/* for the last row, by the trigger */
	BlockNumber usual;			/* where other rows go on, as the trigger knows */
} Clustering;

/* What became of the rows of this session so far. */
typedef struct RowCounts
{
	int64		seen;
	int64		suggested;		/* a page was suggested, */
	int64		placed;			/* and the row is on it; the access method's only */
	int64		refused;		/* the page had no room, seen beforehand */
	int64		alone;			/* no neighbour, or no clustering index */
} RowCounts;

extern RowCounts row_counts;

/* neighbour.c */
extern void watch_clusterings(void);
extern Clustering *clustering_of(Relation table);
extern BlockNumber suggest_block(Relation table, Clustering *clustering, TupleTableSlot *slot,
								 Size row_length, bool look_for_room);

/* cluster_heap.c */
extern void watch_index_builds(void);

#endif
