/*
 * neighbour.c
 *		Ask the clustering index of a table for the page a new row should go to.
 */
#include "cluster_heap.h"

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/nbtree.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am_d.h"
#include "executor/executor.h"
#include "storage/bufmgr.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/*
 * The tables of the current transaction.  An entry is good for as long as no
 * relation's definition has changed, not just the table's own: which index it
 * is clustered on is kept with the index, so the table is not told.
 *
 * They end with the transaction, because the state of an index expression may
 * hold what does: a function in SQL, for one, keeps its plan there.  For the
 * same reason a subtransaction that fails makes them stale.
 */
static HTAB *clusterings = NULL;
static uint64 generation = 1;

static void
relation_changed(Datum arg, Oid relid)
{
	generation++;
}

static void
transaction_ended(XactEvent event, void *arg)
{
	clusterings = NULL;
}

static void
subtransaction_ended(SubXactEvent event, SubTransactionId subtransaction, SubTransactionId parent,
					 void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		generation++;
}

void
watch_clusterings(void)
{
	CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	RegisterXactCallback(transaction_ended, NULL);
	RegisterSubXactCallback(subtransaction_ended, NULL);
}

/*
 * The index that the table is clustered on, opened, or NULL.
 */
static Relation
open_clustering_index(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	Relation	index = NULL;
	ListCell   *cell;

	foreach(cell, indexes)
	{
		Oid			candidate = lfirst_oid(cell);

		if (!get_index_isclustered(candidate))
			continue;
		index = index_open(candidate, RowExclusiveLock);
		if (index->rd_rel->relam != BTREE_AM_OID)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot put rows of \"%s\" beside their neighbours, because index \"%s\" "
							"is not a btree",
							RelationGetRelationName(table), RelationGetRelationName(index)),
					 errhint("Mark another index by ALTER TABLE ... CLUSTER ON, or none by "
							 "ALTER TABLE ... SET WITHOUT CLUSTER.")));
		if (!index->rd_index->indisvalid)
		{
			index_close(index, NoLock);
			index = NULL;
		}
		break;
	}
	list_free(indexes);
	return index;
}

/*
 * What is known of a table.  Valid until the next call.
 */
Clustering *
clustering_of(Relation table)
{
	Oid			relid = RelationGetRelid(table);
	Clustering *known;
	Relation	index;
	MemoryContext before;
	uint64		now;
	bool		found;

	if (clusterings == NULL)
	{
		HASHCTL		control = {
			.keysize = sizeof(Oid),
			.entrysize = sizeof(Clustering),
			.hcxt = TopTransactionContext,
		};

		clusterings = hash_create("cluster_heap tables", 16, &control,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	known = hash_search(clusterings, &relid, HASH_ENTER, &found);
	if (found && known->generation == generation)
		return known;
	if (found && known->context != NULL)
		MemoryContextDelete(known->context);
	memset((char *) known + sizeof(Oid), 0, sizeof(Clustering) - sizeof(Oid));

	index = open_clustering_index(table);
	now = generation;			/* opening it may itself have brought news of changes */
	if (index == NULL)
	{
		known->generation = now;
		return known;
	}
	known->context = AllocSetContextCreate(TopTransactionContext, "cluster_heap table",
										   ALLOCSET_SMALL_SIZES);
	before = MemoryContextSwitchTo(known->context);
	known->info = BuildIndexInfo(index);
	known->estate = CreateExecutorState();
	MemoryContextSetParent(known->estate->es_query_cxt, known->context);
	MemoryContextSwitchTo(before);
	known->index = RelationGetRelid(index);
	index_close(index, NoLock);
	known->generation = now;
	return known;
}

/*
 * The heap block of the entry beside which this one would be put, or
 * InvalidBlockNumber if its leaf has none.
 *
 * The index is searched as an insertion would, so that all its columns count,
 * in their order, with NULLs and expressions.  On the edge of a leaf the
 * neighbour on the other side is taken: to step to the next leaf would cost
 * another page.
 */
static BlockNumber
neighbour_block(Relation table, Relation index, IndexTuple entry)
{
	BTScanInsert key = _bt_mkscankey(index, entry);
	Buffer		buffer;
	Page		page;
	OffsetNumber first,
				low,
				high,
				end;
	BlockNumber block = InvalidBlockNumber;

	key->scantid = NULL;		/* there is no row yet */
	key->nextkey = true;		/* behind its equals */
#if PG_VERSION_NUM >= 190000
	_bt_search(index, table, key, &buffer, BT_READ, false);
#elif PG_VERSION_NUM >= 170000
	_bt_freestack(_bt_search(index, table, key, &buffer, BT_READ));
#elif PG_VERSION_NUM >= 160000
	_bt_freestack(_bt_search(index, table, key, &buffer, BT_READ, NULL));
#else
	_bt_freestack(_bt_search(index, key, &buffer, BT_READ, NULL));
#endif
	if (!BufferIsValid(buffer))
		return InvalidBlockNumber;	/* the index is empty */
	page = BufferGetPage(buffer);
	first = low = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	end = high = OffsetNumberNext(PageGetMaxOffsetNumber(page));
	while (low < high)
	{
		OffsetNumber middle = low + (high - low) / 2;

		if (_bt_compare(index, key, page, middle) >= 0)
			low = OffsetNumberNext(middle);
		else
			high = middle;
	}
	/* Now low is the first entry behind the new one. */
	if (first < end)
	{
		bool		before = (neighbour == NEIGHBOUR_BEFORE && low > first) || low == end;
		OffsetNumber beside = before ? OffsetNumberPrev(low) : low;
		IndexTuple	found = (IndexTuple) PageGetItem(page, PageGetItemId(page, beside));
		ItemPointer tid = before ? BTreeTupleGetMaxHeapTID(found) : BTreeTupleGetHeapTID(found);

		block = ItemPointerGetBlockNumber(tid);
	}
	_bt_relbuf(index, buffer);
	return block;
}

/*
 * Whether the page has room for a row of this length, fillfactor aside.  The
 * block exists: to cut it off, VACUUM would need a lock that conflicts with
 * the one we insert under.
 */
static bool
has_room(Relation table, BlockNumber block, Size length)
{
	Buffer		buffer = ReadBuffer(table, block);
	Size		room;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	room = PageGetHeapFreeSpace(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return room >= length;
}

/*
 * The block to be tried first for a row, or InvalidBlockNumber for none.
 */
BlockNumber
suggest_block(Relation table, Clustering *clustering, TupleTableSlot *slot, Size row_length,
			  bool look_for_room)
{
	BlockNumber block;
	ExprContext *expressions;
	MemoryContext before;
	Relation	index;
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	row_counts.seen++;
	if (!OidIsValid(clustering->index))
	{
		row_counts.alone++;
		return InvalidBlockNumber;
	}
	index = index_open(clustering->index, RowExclusiveLock);
	expressions = GetPerTupleExprContext(clustering->estate);
	expressions->ecxt_scantuple = slot;
	before = MemoryContextSwitchTo(expressions->ecxt_per_tuple_memory);
	FormIndexDatum(clustering->info, slot, clustering->estate, values, nulls);
	block = neighbour_block(table, index,
							index_form_tuple(RelationGetDescr(index), values, nulls));
	MemoryContextSwitchTo(before);
	expressions->ecxt_scantuple = NULL;
	ResetExprContext(expressions);
	index_close(index, NoLock);

	if (block == InvalidBlockNumber)
	{
		row_counts.alone++;
		return InvalidBlockNumber;
	}
	/* A longer row is made as short as that, if it can be. */
	row_length = Min(MAXALIGN(row_length), TOAST_TUPLE_TARGET);
	if (look_for_room && !has_room(table, block, row_length))
	{
		row_counts.refused++;
		return InvalidBlockNumber;
	}
	row_counts.suggested++;
	return block;
}
