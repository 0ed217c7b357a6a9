/*
 * search.c
 *		Probes: find the entries of a value, or of its hash code.
 */
#include "hash_2008.h"

#include "access/genam.h"
#include "fmgr.h"
#include "nodes/tidbitmap.h"
#include "pgstat.h"
#include "utils/snapmgr.h"

/* What a probe has found, all of it at once. */
typedef struct Found
{
	bool		is_read;
	bool		recheck;
	int			count;
	int			next;
	int			room;
	ItemPointerData *tids;
} Found;

static void
keep_tid(Found *found, IndexTuple entry)
{
	if (found->count == found->room)
	{
		found->room *= 2;
		found->tids = repalloc_array(found->tids, ItemPointerData, found->room);
	}
	found->tids[found->count++] = entry->t_tid;
}

static bool
has_value(IndexScanDesc scan, IndexTuple entry)
{
	for (int i = 0; i < scan->numberOfKeys; i++)
	{
		ScanKey		key = &scan->keyData[i];
		bool		is_null;
		Datum		value = index_getattr(entry, 1, RelationGetDescr(scan->indexRelation), &is_null);

		if (!DatumGetBool(FunctionCall2Coll(&key->sk_func, key->sk_collation, value,
											key->sk_argument)))
			return false;
	}
	return true;
}

static void
search_page(IndexScanDesc scan, Found *found, Page page, Store store, uint32 code)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	OffsetNumber offset;

	if (store == STORE_CODE)
	{
		for (offset = first_with_code(page, code); offset <= last; offset++)
		{
			CodeEntry  *entry = (CodeEntry *) GetEntry(page, offset);

			if (entry->code != code)
				break;
			keep_tid(found, &entry->tuple);
		}
		return;
	}
	for (offset = FirstOffsetNumber; offset <= last; offset++)
	{
		IndexTuple	entry = GetEntry(page, offset);

		if (has_value(scan, entry))
			keep_tid(found, entry);
	}
}

static void
search_bucket(IndexScanDesc scan)
{
	Relation	index = scan->indexRelation;
	Found	   *found = scan->opaque;
	uint32		code;
	Buffer		meta_buffer;
	MetaPage   *meta;
	BlockNumber block;

	/* Rows that VACUUM removes meanwhile must not be mistaken for their successors. */
	if (scan->xs_snapshot != NULL && !IsMVCCSnapshot(scan->xs_snapshot))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a hash_2008 index cannot be used for constraints")));
	found->count = found->next = 0;
	found->is_read = true;
	for (int i = 0; i < scan->numberOfKeys; i++)
		if (scan->keyData[i].sk_flags & SK_ISNULL)
			return;
	pgstat_count_index_scan(index);
#if PG_VERSION_NUM >= 180000
	if (scan->instrument != NULL)
		scan->instrument->nsearches++;
#endif
	code = hash_of(index, scan->keyData[0].sk_argument);
	meta_buffer = lock_metapage(index, BUFFER_LOCK_SHARE);
	meta = GetMetaPage(meta_buffer);
	found->recheck = meta->store == STORE_CODE;
	block = block_of_bucket(meta, bucket_of_code(meta, code));
	while (block != InvalidBlockNumber)
	{
		Buffer		buffer = read_page(index, block, BUFFER_LOCK_SHARE);
		Page		page = BufferGetPage(buffer);

		search_page(scan, found, page, meta->store, code);
		block = GetPageTrailer(page)->next;
		UnlockReleaseBuffer(buffer);
	}
	UnlockReleaseBuffer(meta_buffer);
}

IndexScanDesc
hash_2008_begin_scan(Relation index, int keys, int orderbys)
{
	IndexScanDesc scan = RelationGetIndexScan(index, keys, orderbys);
	Found	   *found = palloc0(sizeof(Found));

	found->room = 8;
	found->tids = palloc_array(ItemPointerData, found->room);
	scan->opaque = found;
	return scan;
}

void
hash_2008_rescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys, int norderbys)
{
	if (keys != NULL && scan->numberOfKeys > 0)
		memmove(scan->keyData, keys, scan->numberOfKeys * sizeof(ScanKeyData));
	((Found *) scan->opaque)->is_read = false;
}

bool
hash_2008_get_tuple(IndexScanDesc scan, ScanDirection direction)
{
	Found	   *found = scan->opaque;

	if (!found->is_read)
		search_bucket(scan);
	if (found->next == found->count)
		return false;
	scan->xs_heaptid = found->tids[found->next++];
	scan->xs_recheck = found->recheck;
	return true;
}

int64
hash_2008_get_bitmap(IndexScanDesc scan, TIDBitmap *bitmap)
{
	Found	   *found = scan->opaque;

	search_bucket(scan);
	tbm_add_tuples(bitmap, found->tids, found->count, found->recheck);
	return found->count;
}

void
hash_2008_end_scan(IndexScanDesc scan)
{
	Found	   *found = scan->opaque;

	pfree(found->tids);
	pfree(found);
}
