/*
 * cluster_heap.c
 *		The table access method cluster_heap: heap's routines, but for where a
 *		new row is put.  The new version of an updated row stays with heap.
 */
#include "cluster_heap.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "fmgr.h"
#include "utils/inval.h"

static TableAmRoutine cluster_heap;
static const TableAmRoutine *heap = NULL;

/* The table that is heap for now; see start_as_heap(). */
static Relation as_heap = NULL;

/* What heap's routines have as options. */
#if PG_VERSION_NUM >= 190000
typedef uint32 InsertOptions;
#else
typedef int InsertOptions;
#endif

typedef struct Insertion
{
	CommandId	command;
	InsertOptions options;
	bool		speculative;
	uint32		token;
} Insertion;

static void
insert_as_heap(Relation table, TupleTableSlot *slot, const Insertion *how, BulkInsertState bulk)
{
	if (how->speculative)
		heap->tuple_insert_speculative(table, slot, how->command, how->options, bulk, how->token);
	else
		heap->tuple_insert(table, slot, how->command, how->options, bulk);
}

/*
 * Heap keeps the reserve of fillfactor free on the suggested page as on any
 * other, and cannot be told otherwise.  So for the one row there is none.
 */
static void
insert_into_reserve(Relation table, TupleTableSlot *slot, const Insertion *how)
{
	StdRdOptions *options = (StdRdOptions *) table->rd_options;
	const int	fillfactor = options->fillfactor;

	options->fillfactor = HEAP_DEFAULT_FILLFACTOR;
	PG_TRY();
	{
		insert_as_heap(table, slot, how, NULL);
	}
	PG_FINALLY();
	{
		/* They may have been read anew meanwhile, with a value that is not ours. */
		if ((StdRdOptions *) table->rd_options == options)
			options->fillfactor = fillfactor;
	}
	PG_END_TRY();
}

/*
 * The state of a bulk insertion is passed on only where no page is suggested:
 * heap would try the page of that state, and no other.
 */
static void
insert_beside(Relation table, TupleTableSlot *slot, const Insertion *how, BulkInsertState bulk)
{
	Clustering *clustering = clustering_of(table);
	bool		look = check_room || use_reserve;
	Size		length = 0;
	BlockNumber usual,
				block;

	if (look && OidIsValid(clustering->index))
	{
		bool		is_ours;
		HeapTuple	row = ExecFetchSlotHeapTuple(slot, true, &is_ours);

		length = row->t_len;
		if (is_ours)
			heap_freetuple(row);
	}
	block = suggest_block(table, clustering, slot, length, look);
	if (block == InvalidBlockNumber)
	{
		insert_as_heap(table, slot, how, bulk);
		return;
	}
	usual = RelationGetTargetBlock(table);
	RelationSetTargetBlock(table, block);
	if (use_reserve && table->rd_options != NULL)
		insert_into_reserve(table, slot, how);
	else
		insert_as_heap(table, slot, how, NULL);
	if (ItemPointerGetBlockNumber(&slot->tts_tid) == block)
	{
		row_counts.placed++;
		/* Rows that find no room are not to follow somebody else's neighbour. */
		if (look)
			RelationSetTargetBlock(table, usual);
	}
}

static void
cluster_heap_insert(Relation table, TupleTableSlot *slot, CommandId command, InsertOptions options,
					BulkInsertState bulk)
{
	Insertion	how = {.command = command, .options = options};

	insert_beside(table, slot, &how, bulk);
}

static void
cluster_heap_insert_speculative(Relation table, TupleTableSlot *slot, CommandId command,
								InsertOptions options, BulkInsertState bulk, uint32 token)
{
	Insertion	how = {
		.command = command,
		.options = options,
		.speculative = true,
		.token = token,
	};

	insert_beside(table, slot, &how, bulk);
}

static void
cluster_heap_multi_insert(Relation table, TupleTableSlot **slots, int count, CommandId command,
						  InsertOptions options, BulkInsertState bulk)
{
	Insertion	how = {.command = command, .options = options};

	if (!OidIsValid(clustering_of(table)->index))
	{
		row_counts.seen += count;
		row_counts.alone += count;
		heap->multi_insert(table, slots, count, command, options, bulk);
		return;
	}
	for (int i = 0; i < count; i++)
		insert_beside(table, slots[i], &how, bulk);
}

/*
 * heap_getnext(), by which indexes are built, refuses every access method but
 * heap.  So the table is heap for that long.
 *
 * When something changes meanwhile, the relation cache may read the table's
 * definition anew, and with it the access method.  Callbacks come after that,
 * and table_read_anew() puts it right again.  It shares nothing with the
 * callback of neighbour.c, so either may come first.
 */
static void
keep_as_heap(void)
{
	if (as_heap != NULL)
		as_heap->rd_tableam = heap;
}

static void
table_read_anew(Datum arg, Oid relid)
{
	keep_as_heap();
}

void
watch_index_builds(void)
{
	CacheRegisterRelcacheCallback(table_read_anew, (Datum) 0);
}

static Relation
start_as_heap(Relation table)
{
	Relation	before = as_heap;

	as_heap = table;
	keep_as_heap();
	return before;
}

static void
end_as_heap(Relation table, Relation before)
{
	as_heap = before;
	if (table != before)
		table->rd_tableam = &cluster_heap;
}

static double
cluster_heap_index_build_range_scan(Relation table, Relation index, IndexInfo *info,
									bool allow_sync, bool anyvisible, bool progress,
									BlockNumber start, BlockNumber count,
									IndexBuildCallback callback, void *state,
									TableScanDesc scan)
{
	Relation	before = start_as_heap(table);
	volatile double rows = 0;

	PG_TRY();
	{
		rows = heap->index_build_range_scan(table, index, info, allow_sync, anyvisible, progress,
											start, count, callback, state, scan);
	}
	PG_FINALLY();
	{
		end_as_heap(table, before);
	}
	PG_END_TRY();
	return rows;
}

static void
cluster_heap_index_validate_scan(Relation table, Relation index, IndexInfo *info,
								 Snapshot snapshot, ValidateIndexState *state)
{
	Relation	before = start_as_heap(table);

	PG_TRY();
	{
		heap->index_validate_scan(table, index, info, snapshot, state);
	}
	PG_FINALLY();
	{
		end_as_heap(table, before);
	}
	PG_END_TRY();
}

static Oid
cluster_heap_toast_am(Relation table)
{
	return HEAP_TABLE_AM_OID;
}

PG_FUNCTION_INFO_V1(cluster_heap_handler);

Datum
cluster_heap_handler(PG_FUNCTION_ARGS)
{
	if (heap == NULL)
	{
		heap = GetHeapamTableAmRoutine();
		cluster_heap = *heap;
		cluster_heap.tuple_insert = cluster_heap_insert;
		cluster_heap.tuple_insert_speculative = cluster_heap_insert_speculative;
		cluster_heap.multi_insert = cluster_heap_multi_insert;
		cluster_heap.index_build_range_scan = cluster_heap_index_build_range_scan;
		cluster_heap.index_validate_scan = cluster_heap_index_validate_scan;
		cluster_heap.relation_toast_am = cluster_heap_toast_am;
	}
	PG_RETURN_POINTER(&cluster_heap);
}
