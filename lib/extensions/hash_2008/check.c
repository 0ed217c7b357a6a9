/*
 * check.c
 *		Look at every page of an index, and complain of what should not be.
 */
#include "hash_2008.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

typedef struct Check
{
	Relation	index;
	MetaPage   *meta;
	BlockNumber blocks;
	bool	   *seen;			/* by block */
	int64		entries;
	int64		overflow_pages;
	int64		free_pages;
	int			longest_chain;
} Check;

#define complain(check, ...) \
	ereport(ERROR, \
			(errcode(ERRCODE_INDEX_CORRUPTED), \
			 errmsg("index \"%s\" is broken", RelationGetRelationName((check)->index)), \
			 errdetail_internal(__VA_ARGS__)))

/*
 * A page of a chain, locked; it must be in one chain only.
 */
static Buffer
read_once(Check *check, BlockNumber block, PageKind kind, uint32 bucket)
{
	Buffer		buffer;
	Page		page;

	if (block == METAPAGE || block >= check->blocks)
		complain(check, "A link leads to page %u of %u.", block, check->blocks);
	if (check->seen[block])
		complain(check, "Page %u is linked twice.", block);
	check->seen[block] = true;
	buffer = read_page(check->index, block, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	if (PageIsNew(page) || GetPageTrailer(page)->page_id != PAGE_ID ||
		GetPageTrailer(page)->kind != kind || GetPageTrailer(page)->bucket != bucket)
		complain(check, "Page %u should be of kind %d and of bucket %u.", block, kind, bucket);
	return buffer;
}

static void
check_entries(Check *check, Page page, BlockNumber block, uint32 bucket)
{
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	uint32		before = 0;

	for (OffsetNumber offset = FirstOffsetNumber; offset <= last; offset++)
	{
		uint32		code = code_of_entry(check->index, check->meta->store, GetEntry(page, offset));

		if (bucket_of_code(check->meta, code) != bucket)
			complain(check, "Entry %u of page %u does not belong to bucket %u.", offset, block,
					 bucket);
		if (check->meta->store == STORE_CODE && code < before)
			complain(check, "Entry %u of page %u is out of order.", offset, block);
		before = code;
	}
	check->entries += last;
}

static void
check_bucket(Check *check, uint32 bucket)
{
	BlockNumber block = block_of_bucket(check->meta, bucket);
	int			pages = 0;

	while (block != InvalidBlockNumber)
	{
		Buffer		buffer = read_once(check, block, pages == 0 ? BUCKET_PAGE : OVERFLOW_PAGE,
									   bucket);
		Page		page = BufferGetPage(buffer);

		check_entries(check, page, block, bucket);
		block = GetPageTrailer(page)->next;
		UnlockReleaseBuffer(buffer);
		pages++;
	}
	check->overflow_pages += pages - 1;
	check->longest_chain = Max(check->longest_chain, pages);
}

static void
check_free_pages(Check *check)
{
	BlockNumber block = check->meta->first_free;

	while (block != InvalidBlockNumber)
	{
		Buffer		buffer = read_once(check, block, FREE_PAGE, 0);

		block = GetPageTrailer(BufferGetPage(buffer))->next;
		UnlockReleaseBuffer(buffer);
		check->free_pages++;
	}
}

/*
 * What is in no chain is a bucket of the last doubling that is not in use yet.
 */
static void
check_other_pages(Check *check)
{
	int64		unused = ((int64) 1 << check->meta->splitpoint) - 1 - check->meta->max_bucket;

	for (BlockNumber block = METAPAGE + 1; block < check->blocks; block++)
		if (!check->seen[block])
			unused--;
	if (unused != 0)
		complain(check, "%lld pages are missing or lost.", (long long) unused);
}

static void
check_index(Check *check)
{
	check->blocks = RelationGetNumberOfBlocks(check->index);
	check->seen = palloc0_array(bool, check->blocks);
	if (check->blocks != number_of_blocks(check->meta))
		complain(check, "It has %u pages in place of %u.", check->blocks,
				 number_of_blocks(check->meta));
	for (uint32 bucket = 0; bucket <= check->meta->max_bucket; bucket++)
		check_bucket(check, bucket);
	check_free_pages(check);
	check_other_pages(check);
	if (check->entries != (int64) check->meta->entries)
		complain(check, "It has %lld entries, and counted %lld.", (long long) check->entries,
				 (long long) check->meta->entries);
}

/*
 * hash_2008_check(index regclass) RETURNS (store, presorted, entries,
 * bucket_fill, buckets, overflow_pages, free_pages, longest_chain)
 */
PG_FUNCTION_INFO_V1(hash_2008_check);

Datum
hash_2008_check(PG_FUNCTION_ARGS)
{
	Check		check = {.index = index_open(PG_GETARG_OID(0), AccessShareLock)};
	bool		nulls[8] = {false};
	Datum		values[lengthof(nulls)];
	TupleDesc	columns;
	Buffer		buffer;

	if (check.index->rd_indam->ambuild != hash_2008_build)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a hash_2008 index", RelationGetRelationName(check.index))));
	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	buffer = lock_metapage(check.index, BUFFER_LOCK_SHARE);
	check.meta = GetMetaPage(buffer);
	check_index(&check);
	values[0] = CStringGetTextDatum(check.meta->store == STORE_CODE ? "code" : "value");
	values[1] = BoolGetDatum(check.meta->presorted != 0);
	values[2] = Int64GetDatum(check.entries);
	values[3] = Int32GetDatum(check.meta->bucket_fill);
	values[4] = Int64GetDatum((int64) check.meta->max_bucket + 1);
	values[5] = Int64GetDatum(check.overflow_pages);
	values[6] = Int64GetDatum(check.free_pages);
	values[7] = Int32GetDatum(check.longest_chain);
	UnlockReleaseBuffer(buffer);
	index_close(check.index, AccessShareLock);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(columns), values, nulls)));
}
