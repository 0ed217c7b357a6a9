/*
 * pages.c
 *		The metapage, the pages of buckets, and where they are in the file.
 *
 * Who changes pages has the metapage locked exclusively.
 */
#include "hash_2008.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/lsyscache.h"

/*
 * How many entries a bucket should have: as many as fit on the part of a page
 * that fillfactor names.  Values of a type of variable width are taken to have
 * the width that the planner takes them to have, which is 32 bytes for text.
 */
static uint32
bucket_fill(Relation index, Store store, int fillfactor)
{
	Form_pg_attribute column = TupleDescAttr(RelationGetDescr(index), 0);
	int32		width = sizeof(uint32);
	uint32		fill;

	if (store == STORE_VALUE)
		width = get_typavgwidth(column->atttypid, column->atttypmod);
	fill = (BLCKSZ * fillfactor / 100) /
		(MAXALIGN(sizeof(IndexTupleData)) + MAXALIGN(width) + sizeof(ItemIdData));
	return Max(fill, 10);
}

static void
finish_new_page(Buffer buffer, ForkNumber fork)
{
	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	/* After a crash, the init fork is what an unlogged index begins with. */
	if (fork == INIT_FORKNUM)
		log_newpage_buffer(buffer, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

static Buffer
add_page(Relation index, ForkNumber fork)
{
#if PG_VERSION_NUM >= 160000
	return ExtendBufferedRel(BMR_REL(index), fork, NULL, EB_LOCK_FIRST | EB_SKIP_EXTENSION_LOCK);
#else
	return ReadBufferExtended(index, fork, P_NEW, RBM_ZERO_AND_LOCK, NULL);
#endif
}

/*
 * Make the metapage and as many buckets as that many rows need, rounded up to
 * a power of two.
 */
void
make_index(Relation index, ForkNumber fork, double rows)
{
	Options    *options = (Options *) index->rd_options;
	Buffer		buffer = add_page(index, fork);
	Page		page = BufferGetPage(buffer);
	MetaPage   *meta = GetMetaPage(buffer);
	double		wanted;
	uint32		buckets = 2;

	PageInit(page, BLCKSZ, 0);
	memset(meta, 0, sizeof(MetaPage));
	((PageHeader) page)->pd_lower = (char *) (meta + 1) - (char *) page;
	meta->magic = MAGIC;
	meta->store = options ? options->store : STORE_CODE;
	meta->bucket_fill = bucket_fill(index, meta->store,
									options ? options->fillfactor : DEFAULT_FILLFACTOR);
	wanted = rows / meta->bucket_fill;
	if (wanted > 2)
		buckets = pg_nextpower2_32((uint32) Min(wanted, 0x40000000));
	meta->max_bucket = buckets - 1;
	meta->high_mask = 2 * buckets - 1;
	meta->low_mask = buckets - 1;
	meta->splitpoint = pg_ceil_log2_32(buckets);
	meta->first_free = InvalidBlockNumber;
	finish_new_page(buffer, fork);

	for (uint32 bucket = 0; bucket < buckets; bucket++)
	{
		CHECK_FOR_INTERRUPTS();
		buffer = add_page(index, fork);
		init_page(BufferGetPage(buffer), BUCKET_PAGE, bucket);
		finish_new_page(buffer, fork);
	}
}

Buffer
lock_metapage(Relation index, int mode)
{
	Buffer		buffer = read_page(index, METAPAGE, mode);

	if (GetMetaPage(buffer)->magic != MAGIC)
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" has no metapage of hash_2008",
						RelationGetRelationName(index))));
	return buffer;
}

uint32
bucket_of_code(const MetaPage *meta, uint32 code)
{
	uint32		bucket = code & meta->high_mask;

	return bucket > meta->max_bucket ? bucket & meta->low_mask : bucket;
}

BlockNumber
block_of_bucket(const MetaPage *meta, uint32 bucket)
{
	BlockNumber before = bucket == 0 ? 0 : meta->spares[pg_ceil_log2_32(bucket + 1) - 1];

	return 1 + bucket + before;
}

BlockNumber
number_of_blocks(const MetaPage *meta)
{
	return 1 + ((BlockNumber) 1 << meta->splitpoint) + meta->spares[meta->splitpoint];
}

Buffer
read_page(Relation index, BlockNumber block, int mode)
{
	Buffer		buffer = ReadBuffer(index, block);

	LockBuffer(buffer, mode);
	return buffer;
}

void
init_page(Page page, PageKind kind, uint32 bucket)
{
	PageTrailer *trailer;

	PageInit(page, BLCKSZ, sizeof(PageTrailer));
	trailer = GetPageTrailer(page);
	trailer->next = InvalidBlockNumber;
	trailer->bucket = bucket;
	trailer->kind = kind;
	trailer->page_id = PAGE_ID;
}

/*
 * An empty overflow page, locked.
 */
Buffer
take_overflow_page(Relation index, MetaPage *meta, uint32 bucket)
{
	Buffer		buffer;

	if (meta->first_free != InvalidBlockNumber)
	{
		buffer = read_page(index, meta->first_free, BUFFER_LOCK_EXCLUSIVE);
		meta->first_free = GetPageTrailer(BufferGetPage(buffer))->next;
	}
	else
	{
		buffer = add_page(index, MAIN_FORKNUM);
		if (BufferGetBlockNumber(buffer) != number_of_blocks(meta))
			elog(ERROR, "index \"%s\" has %u pages, but its metapage knows of %u",
				 RelationGetRelationName(index), BufferGetBlockNumber(buffer),
				 number_of_blocks(meta));
		meta->spares[meta->splitpoint]++;
	}
	init_page(BufferGetPage(buffer), OVERFLOW_PAGE, bucket);
	MarkBufferDirty(buffer);
	return buffer;
}

/*
 * Free a chain of overflow pages.
 */
void
free_overflow_pages(Relation index, MetaPage *meta, BlockNumber first)
{
	while (first != InvalidBlockNumber)
	{
		Buffer		buffer = read_page(index, first, BUFFER_LOCK_EXCLUSIVE);
		Page		page = BufferGetPage(buffer);
		BlockNumber next = GetPageTrailer(page)->next;

		init_page(page, FREE_PAGE, 0);
		GetPageTrailer(page)->next = meta->first_free;
		meta->first_free = first;
		MarkBufferDirty(buffer);
		UnlockReleaseBuffer(buffer);
		first = next;
	}
}

/*
 * Double the buckets that there are pages for.  They are zero until used.
 */
void
add_splitpoint(Relation index, MetaPage *meta)
{
	uint32		next = meta->splitpoint + 1;

	if (next >= MOST_SPLITPOINTS - 1)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("index \"%s\" cannot have more buckets",
						RelationGetRelationName(index))));
	meta->spares[next] = meta->spares[meta->splitpoint];
	meta->splitpoint = next;
#if PG_VERSION_NUM >= 160000
	ReleaseBuffer(ExtendBufferedRelTo(BMR_REL(index), MAIN_FORKNUM, NULL, EB_SKIP_EXTENSION_LOCK,
									  number_of_blocks(meta), RBM_NORMAL));
#else
	while (RelationGetNumberOfBlocks(index) < number_of_blocks(meta))
		ReleaseBuffer(ReadBufferExtended(index, MAIN_FORKNUM, P_NEW, RBM_NORMAL, NULL));
#endif
}
