/*
 * build.c
 *		Build an index, and add rows to it.
 */
#include "hash_2008.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/tupdesc.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "optimizer/optimizer.h"
#include "optimizer/plancat.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

typedef struct Build
{
	MetaPage	meta;			/* before the first entry */
	Tuplesortstate *sort;		/* or NULL, if entries are added as rows come */
	TupleTableSlot *slot;		/* of the sort: bucket, entry */
	MemoryContext of_row;
	double		entries;
} Build;

static IndexTuple
form_entry_that_fits(Relation index, Store store, Datum value, uint32 code, ItemPointer tid)
{
	IndexTuple	entry = form_entry(index, store, value, code, tid);
	Size		most = MAXALIGN_DOWN(BLCKSZ - SizeOfPageHeaderData - sizeof(ItemIdData) -
									 MAXALIGN(sizeof(PageTrailer)));

	if (IndexTupleSize(entry) > most)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("index row size %zu exceeds hash_2008 maximum %zu for index \"%s\"",
						IndexTupleSize(entry), most, RelationGetRelationName(index))));
	return entry;
}

/*
 * The rule of September 2008: sort first if the index will not be cached.
 */
static bool
sorts_first(Relation index, const MetaPage *meta)
{
	Options    *options = (Options *) index->rd_options;
	Presort		presort = options ? options->presort : PRESORT_AUTO;

	if (presort == PRESORT_AUTO)
		return meta->max_bucket + 1 >= (uint32) effective_cache_size;
	return presort == PRESORT_ON;
}

static void
begin_sort(Build *build)
{
	TupleDesc	columns = CreateTemplateTupleDesc(2);
	AttrNumber	by = 1;
	Oid			operator = Int8LessOperator;
	Oid			collation = InvalidOid;
	bool		nulls_first = false;

	TupleDescInitEntry(columns, 1, "bucket", INT8OID, -1, 0);
	TupleDescInitEntry(columns, 2, "entry", BYTEAOID, -1, 0);
#if PG_VERSION_NUM >= 190000
	TupleDescFinalize(columns);
#endif
	build->sort = tuplesort_begin_heap(columns, 1, &by, &operator, &collation, &nulls_first,
									   maintenance_work_mem, NULL, TUPLESORT_NONE);
	build->slot = MakeSingleTupleTableSlot(columns, &TTSOpsMinimalTuple);
}

static void
put_into_sort(Build *build, IndexTuple entry, uint32 bucket)
{
	Size		size = IndexTupleSize(entry);
	bytea	   *copy = palloc(VARHDRSZ + size);

	SET_VARSIZE(copy, VARHDRSZ + size);
	memcpy(VARDATA(copy), entry, size);
	ExecClearTuple(build->slot);
	build->slot->tts_values[0] = Int64GetDatum(bucket);
	build->slot->tts_values[1] = PointerGetDatum(copy);
	build->slot->tts_isnull[0] = build->slot->tts_isnull[1] = false;
	ExecStoreVirtualTuple(build->slot);
	tuplesort_puttupleslot(build->sort, build->slot);
}

static void
insert_sorted(Relation index, Build *build)
{
	MemoryContext before = CurrentMemoryContext;

	tuplesort_performsort(build->sort);
	while (tuplesort_gettupleslot(build->sort, true, false, build->slot, NULL))
	{
		bool		is_null;
		bytea	   *copy = DatumGetByteaPP(slot_getattr(build->slot, 2, &is_null));
		IndexTuple	entry;

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(build->of_row);
		entry = palloc(VARSIZE_ANY_EXHDR(copy));	/* aligned, as the copy is not */
		memcpy(entry, VARDATA_ANY(copy), VARSIZE_ANY_EXHDR(copy));
		insert_entry(index, entry, code_of_entry(index, build->meta.store, entry));
		MemoryContextSwitchTo(before);
		MemoryContextReset(build->of_row);
	}
	tuplesort_end(build->sort);
	ExecDropSingleTupleTableSlot(build->slot);
}

static void
build_row(Relation index, ItemPointer tid, Datum *values, bool *nulls, bool is_alive, void *state)
{
	Build	   *build = state;
	MemoryContext before;
	uint32		code;
	IndexTuple	entry;

	if (nulls[0])
		return;
	before = MemoryContextSwitchTo(build->of_row);
	code = hash_of(index, values[0]);
	entry = form_entry_that_fits(index, build->meta.store, values[0], code, tid);
	if (build->sort != NULL)
		put_into_sort(build, entry, bucket_of_code(&build->meta, code));
	else
		insert_entry(index, entry, code);
	build->entries++;
	MemoryContextSwitchTo(before);
	MemoryContextReset(build->of_row);
}

IndexBuildResult *
hash_2008_build(Relation table, Relation index, IndexInfo *info)
{
	IndexBuildResult *result = palloc(sizeof(IndexBuildResult));
	Build		build = {0};
	Buffer		buffer;
	BlockNumber pages;
	double		rows,
				all_visible;

	if (index->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a hash_2008 index must be on an unlogged table, because it is for "
						"measuring only")));
	estimate_rel_size(table, NULL, &pages, &rows, &all_visible);
	make_index(index, MAIN_FORKNUM, rows);
	buffer = lock_metapage(index, BUFFER_LOCK_EXCLUSIVE);
	GetMetaPage(buffer)->presorted = sorts_first(index, GetMetaPage(buffer));
	MarkBufferDirty(buffer);
	build.meta = *GetMetaPage(buffer);
	UnlockReleaseBuffer(buffer);

	build.of_row = AllocSetContextCreate(CurrentMemoryContext, "hash_2008 row",
										 ALLOCSET_DEFAULT_SIZES);
	if (build.meta.presorted)
		begin_sort(&build);
	result->heap_tuples = table_index_build_scan(table, index, info, true, true, build_row,
												 &build, NULL);
	if (build.sort != NULL)
		insert_sorted(index, &build);
	MemoryContextDelete(build.of_row);
	result->index_tuples = build.entries;
	return result;
}

void
hash_2008_build_empty(Relation index)
{
	make_index(index, INIT_FORKNUM, 0);
}

bool
hash_2008_insert(Relation index, Datum *values, bool *nulls, ItemPointer tid, Relation table,
				 IndexUniqueCheck check_unique, bool unchanged, IndexInfo *info)
{
	Buffer		buffer;
	Store		store;
	uint32		code;

	if (nulls[0])
		return false;
	buffer = lock_metapage(index, BUFFER_LOCK_SHARE);
	store = GetMetaPage(buffer)->store;
	UnlockReleaseBuffer(buffer);
	code = hash_of(index, values[0]);
	insert_entry(index, form_entry_that_fits(index, store, values[0], code, tid), code);
	return false;
}
