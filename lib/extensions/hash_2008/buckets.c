/*
 * buckets.c
 *		Add entries to buckets, and split buckets.
 */
#include "hash_2008.h"

#include "utils/memutils.h"

/*
 * Add an entry to the first page of the bucket that has room for it.
 */
static void
add_to_bucket(Relation index, MetaPage *meta, uint32 bucket, IndexTuple entry, uint32 code)
{
	Size		size = IndexTupleSize(entry);	/* aligned by whoever formed it */
	Buffer		buffer = read_page(index, block_of_bucket(meta, bucket), BUFFER_LOCK_EXCLUSIVE);
	Page		page = BufferGetPage(buffer);
	OffsetNumber offset;

	while (PageGetFreeSpace(page) < size)
	{
		PageTrailer *trailer = GetPageTrailer(page);
		Buffer		next;

		if (trailer->next != InvalidBlockNumber)
			next = read_page(index, trailer->next, BUFFER_LOCK_EXCLUSIVE);
		else
		{
			next = take_overflow_page(index, meta, bucket);
			trailer->next = BufferGetBlockNumber(next);
			MarkBufferDirty(buffer);
		}
		UnlockReleaseBuffer(buffer);
		buffer = next;
		page = BufferGetPage(buffer);
	}
	if (meta->store == STORE_CODE)
		offset = first_with_code(page, code);
	else
		offset = OffsetNumberNext(PageGetMaxOffsetNumber(page));
	if (PageAddItem(page, (Pointer) entry, size, offset, false, false) != offset)
		elog(ERROR, "cannot add an entry to page %u of index \"%s\"",
			 BufferGetBlockNumber(buffer), RelationGetRelationName(index));
	MarkBufferDirty(buffer);
	UnlockReleaseBuffer(buffer);
}

Entries *
no_entries(int room)
{
	Entries    *entries = palloc(sizeof(Entries));

	entries->count = 0;
	entries->room = room;
	entries->entries = palloc_array(IndexTuple, room);
	entries->codes = palloc_array(uint32, room);
	return entries;
}

void
keep_entry(Entries *entries, IndexTuple entry, uint32 code)
{
	if (entries->count == entries->room)
	{
		entries->room *= 2;
		entries->entries = repalloc_array(entries->entries, IndexTuple, entries->room);
		entries->codes = repalloc_array(entries->codes, uint32, entries->room);
	}
	entries->entries[entries->count] = entry;
	entries->codes[entries->count++] = code;
}

/*
 * Copies of a bucket's entries.
 */
Entries *
read_bucket(Relation index, const MetaPage *meta, uint32 bucket)
{
	Entries    *entries = no_entries(256);
	BlockNumber block = block_of_bucket(meta, bucket);

	while (block != InvalidBlockNumber)
	{
		Buffer		buffer = read_page(index, block, BUFFER_LOCK_SHARE);
		Page		page = BufferGetPage(buffer);
		OffsetNumber last = PageGetMaxOffsetNumber(page);

		for (OffsetNumber offset = FirstOffsetNumber; offset <= last; offset++)
		{
			IndexTuple	entry = CopyIndexTuple(GetEntry(page, offset));

			keep_entry(entries, entry, code_of_entry(index, meta->store, entry));
		}
		block = GetPageTrailer(page)->next;
		UnlockReleaseBuffer(buffer);
	}
	return entries;
}

/*
 * Let a bucket have these entries and no others.
 */
void
rewrite_bucket(Relation index, MetaPage *meta, uint32 bucket, const Entries *entries)
{
	Buffer		buffer = read_page(index, block_of_bucket(meta, bucket), BUFFER_LOCK_EXCLUSIVE);
	Page		page = BufferGetPage(buffer);
	BlockNumber overflow = InvalidBlockNumber;

	if (!PageIsNew(page))
		overflow = GetPageTrailer(page)->next;
	init_page(page, BUCKET_PAGE, bucket);
	MarkBufferDirty(buffer);
	UnlockReleaseBuffer(buffer);
	free_overflow_pages(index, meta, overflow);
	for (int i = 0; i < entries->count; i++)
		add_to_bucket(index, meta, bucket, entries->entries[i], entries->codes[i]);
}

/*
 * Add a bucket, and move to it what it takes over from the bucket it splits.
 */
static void
add_bucket(Relation index, MetaPage *meta)
{
	uint32		new_bucket = meta->max_bucket + 1;
	uint32		old_bucket = new_bucket & meta->low_mask;
	Entries    *before,
			   *stay,
			   *move;

	if (new_bucket >= (uint32) 1 << meta->splitpoint)
		add_splitpoint(index, meta);
	before = read_bucket(index, meta, old_bucket);
	stay = no_entries(before->room);
	move = no_entries(before->room);

	meta->max_bucket = new_bucket;
	if (new_bucket > meta->high_mask)
	{
		meta->low_mask = meta->high_mask;
		meta->high_mask = new_bucket | meta->low_mask;
	}
	for (int i = 0; i < before->count; i++)
	{
		bool		moves = bucket_of_code(meta, before->codes[i]) == new_bucket;

		keep_entry(moves ? move : stay, before->entries[i], before->codes[i]);
	}
	rewrite_bucket(index, meta, old_bucket, stay);
	rewrite_bucket(index, meta, new_bucket, move);
}

void
insert_entry(Relation index, IndexTuple entry, uint32 code)
{
	Buffer		buffer = lock_metapage(index, BUFFER_LOCK_EXCLUSIVE);
	MetaPage   *meta = GetMetaPage(buffer);

	add_to_bucket(index, meta, bucket_of_code(meta, code), entry, code);
	meta->entries++;
	if (meta->entries > (uint64) meta->bucket_fill * ((uint64) meta->max_bucket + 1))
	{
		MemoryContext of_split = AllocSetContextCreate(CurrentMemoryContext, "hash_2008 split",
													   ALLOCSET_DEFAULT_SIZES);
		MemoryContext before = MemoryContextSwitchTo(of_split);

		add_bucket(index, meta);
		MemoryContextSwitchTo(before);
		MemoryContextDelete(of_split);
	}
	MarkBufferDirty(buffer);
	UnlockReleaseBuffer(buffer);
}
