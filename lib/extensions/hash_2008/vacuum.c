/*
 * vacuum.c
 *		Remove the entries of rows that are gone.
 */
#include "hash_2008.h"

#include "access/genam.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "utils/memutils.h"

/*
 * Returns how many entries of the bucket were removed, and adds those that
 * stay to stats.
 */
static int
vacuum_bucket(Relation index, MetaPage *meta, uint32 bucket, IndexBulkDeleteResult *stats,
			  IndexBulkDeleteCallback callback, void *callback_state)
{
	Entries    *before = read_bucket(index, meta, bucket);
	Entries    *stay = no_entries(before->room);
	int			removed;

	for (int i = 0; i < before->count; i++)
		if (!callback(&before->entries[i]->t_tid, callback_state))
			keep_entry(stay, before->entries[i], before->codes[i]);
	removed = before->count - stay->count;
	if (removed > 0)
		rewrite_bucket(index, meta, bucket, stay);
	stats->num_index_tuples += stay->count;
	stats->tuples_removed += removed;
	return removed;
}

/*
 * Between two buckets the metapage is unlocked, and buckets may be split.  What
 * moves goes to a bucket with a higher number, so it is seen once at least.
 */
IndexBulkDeleteResult *
hash_2008_bulk_delete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
					  IndexBulkDeleteCallback callback, void *callback_state)
{
	MemoryContext of_bucket = AllocSetContextCreate(CurrentMemoryContext, "hash_2008 bucket",
													ALLOCSET_DEFAULT_SIZES);
	uint32		last;

	if (stats == NULL)
		stats = palloc0(sizeof(IndexBulkDeleteResult));
	stats->num_index_tuples = 0;
	for (uint32 bucket = 0;; bucket++)
	{
		Buffer		buffer;
		MetaPage   *meta;
		MemoryContext before;

		vacuum_delay_point(
#if PG_VERSION_NUM >= 180000
						   false
#endif
			);
		buffer = lock_metapage(info->index, BUFFER_LOCK_EXCLUSIVE);
		meta = GetMetaPage(buffer);
		last = meta->max_bucket;
		if (bucket <= last)
		{
			before = MemoryContextSwitchTo(of_bucket);
			meta->entries -= vacuum_bucket(info->index, meta, bucket, stats, callback,
										   callback_state);
			MemoryContextSwitchTo(before);
			MemoryContextReset(of_bucket);
			MarkBufferDirty(buffer);
		}
		UnlockReleaseBuffer(buffer);
		if (bucket > last)
			break;
	}
	MemoryContextDelete(of_bucket);
	return stats;
}

IndexBulkDeleteResult *
hash_2008_vacuum_cleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	if (stats != NULL)
		stats->num_pages = RelationGetNumberOfBlocks(info->index);
	return stats;
}
