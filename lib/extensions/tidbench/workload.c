/*
 * workload.c
 *		The post's two cases, any like them, and the dead rows of a real table.
 */
#include "workload.h"

#include <unistd.h>

#include "access/htup_details.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/memutils.h"

static void
check_at_least_one(const char *name, int64 value)
{
	if (value < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be at least 1", name)));
}

static void
check_table(int64 blocks, const char *rows_name, int64 rows_per_page)
{
	if (blocks > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("blocks must be at most %u", MaxBlockNumber)));
	if (rows_per_page > MaxHeapTuplesPerPage)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be at most %d, the rows that fit on a page",
						rows_name, (int) MaxHeapTuplesPerPage)));
}

static void
check_shape(const Shape *shape)
{
	check_at_least_one("blocks", shape->blocks);
	check_at_least_one("dead_per_page", shape->dead_per_page);
	check_at_least_one("interval", shape->interval);
	check_at_least_one("consecutive", shape->consecutive);
	check_at_least_one("page_interval", shape->page_interval);
	/* One by one first: the product of two large numbers may be a small one. */
	check_table(shape->blocks, "dead_per_page", shape->dead_per_page);
	check_table(shape->blocks, "interval", shape->interval);
	check_table(shape->blocks, "dead_per_page times interval",
				shape->dead_per_page * shape->interval);
	if (shape->consecutive > shape->page_interval)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("consecutive must be at most page_interval")));
}

static bool
is_dead(const Shape *shape, int64 block, int64 offset)
{
	return block % shape->page_interval < shape->consecutive && offset % shape->interval == 0;
}

/*
 * A workload without its dead TIDs, but with room for them.
 */
static Workload *
make_workload(int64 blocks, int64 rows_per_page, int64 dead_count, const Sampling *sampling)
{
	const uint64 size = (uint64) dead_count * sizeof(ItemPointerData);
	const uint64 memory = (uint64) sysconf(_SC_PHYS_PAGES) * (uint64) sysconf(_SC_PAGESIZE);
	MemoryContext context;
	Workload   *made;

	if (sampling->probes < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("probes must be at least 0, which stands for all")));
	/* The system may promise more than it has, and end the server when it is used. */
	if (size > memory)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%lld dead TIDs take %llu MB, and this machine has %llu MB of memory",
						(long long) dead_count, (unsigned long long) (size >> 20),
						(unsigned long long) (memory >> 20))));
	context = AllocSetContextCreate(CurTransactionContext, "tidbench workload",
									ALLOCSET_DEFAULT_SIZES);
	made = MemoryContextAllocZero(context, sizeof(Workload));
	made->context = context;
	made->dead_count = dead_count;
	made->dead = MemoryContextAllocHuge(context, size);
	made->rows_per_page = rows_per_page;
	made->index_count = blocks * rows_per_page;
	made->sampling = *sampling;
	made->probe_count = sampling->probes == 0 ? made->index_count :
		Min(sampling->probes, made->index_count);
	return made;
}

/*
 * Place i of a permutation of 0 .. count - 1: a Feistel network over the
 * smallest even number of bits, gone through again until it falls below count.
 * So the first so many probes are those of a shuffled index of full size,
 * which never has to be held.
 */
static uint64
permuted(uint64 i, uint64 count, uint32 seed)
{
	int			half = 1;
	uint64		mask;

	while (half < 32 && (UINT64CONST(1) << (2 * half)) < count)
		half++;
	mask = (UINT64CONST(1) << half) - 1;
	do
	{
		uint64		left = i >> half,
					right = i & mask;

		for (uint32 round = 0; round < 4; round++)
		{
			uint64		next = left ^ (murmurhash32((uint32) right * 0x9E3779B1u + seed +
													round * 0x85EBCA6Bu) & mask);

			left = right;
			right = next;
		}
		i = left << half | right;
	} while (i >= count);
	return i;
}

/*
 * The place in the index of a probe.  In the order of the table, a sample is
 * spread evenly over it, by a fraction in whole numbers.
 */
static int64
place_of_probe(const Workload *workload, int64 i)
{
	const int64 each = workload->index_count / workload->probe_count,
				rest = workload->index_count % workload->probe_count;

	if (workload->sampling.shuffled)
		return permuted(i, workload->index_count, workload->sampling.seed);
	return i * each + (int64) ((double) i * rest / workload->probe_count);
}

void
make_probes(const Workload *workload, int64 first, int64 count, ItemPointerData *probes)
{
	for (int64 i = 0; i < count; i++)
	{
		const int64 place = place_of_probe(workload, first + i);

		CHECK_FOR_INTERRUPTS();
		ItemPointerSet(&probes[i], (BlockNumber) (place / workload->rows_per_page),
					   (OffsetNumber) (place % workload->rows_per_page + 1));
	}
}

Workload *
workload_of_shape(const Shape *shape, const Sampling *sampling)
{
	Workload   *made;
	int64		dead_pages,
				n = 0;

	check_shape(shape);
	dead_pages = shape->blocks / shape->page_interval * shape->consecutive +
		Min(shape->blocks % shape->page_interval, shape->consecutive);
	made = make_workload(shape->blocks, shape->dead_per_page * shape->interval,
						 dead_pages * shape->dead_per_page, sampling);
	for (int64 page = 0; page < dead_pages; page++)
	{
		const int64 block = page / shape->consecutive * shape->page_interval +
			page % shape->consecutive;

		CHECK_FOR_INTERRUPTS();
		/* Up to 15 ItemPointerSet is a macro, which evaluates its argument more than once. */
		for (int64 i = 1; i <= shape->dead_per_page; i++, n++)
			ItemPointerSet(&made->dead[n], (BlockNumber) block,
						   (OffsetNumber) (i * shape->interval));
	}

	/* Of all TIDs of the index, each dead one is found once. */
	made->expected_hits = made->dead_count;
	if (made->probe_count < made->index_count)
	{
		made->expected_hits = 0;
		for (int64 i = 0; i < made->probe_count; i++)
		{
			const int64 place = place_of_probe(made, i);

			CHECK_FOR_INTERRUPTS();
			made->expected_hits += is_dead(shape, place / made->rows_per_page,
										   place % made->rows_per_page + 1);
		}
	}
	return made;
}

Workload *
workload_of_tids(int64 blocks, int64 rows_per_page, const ItemPointerData *tids, int64 count,
				 const Sampling *sampling)
{
	Workload   *made;
	int64		last = -1;
	uint8	   *marks;

	check_at_least_one("blocks", blocks);
	check_at_least_one("rows_per_page", rows_per_page);
	check_table(blocks, "rows_per_page", rows_per_page);
	if (count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("there must be at least one dead TID")));
	made = make_workload(blocks, rows_per_page, count, sampling);

	/* A bit for every TID of the index, so that no structure is needed to count hits. */
	marks = MemoryContextAllocExtended(made->context, made->index_count / 8 + 1,
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	for (int64 i = 0; i < count; i++)
	{
		const int64 block = ItemPointerGetBlockNumberNoCheck(&tids[i]),
					offset = ItemPointerGetOffsetNumberNoCheck(&tids[i]),
					place = block * rows_per_page + offset - 1;

		CHECK_FOR_INTERRUPTS();
		if (block >= blocks || offset < 1 || offset > rows_per_page)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("TID (%lld,%lld) is in no table of %lld blocks and %lld rows per page",
							(long long) block, (long long) offset,
							(long long) blocks, (long long) rows_per_page)));
		if (place <= last)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("dead TIDs must ascend, and none be there twice"),
					 errhint("array_agg(DISTINCT ctid ORDER BY ctid) makes them so.")));
		last = place;
		marks[place / 8] |= 1 << (place % 8);
		made->dead[i] = tids[i];
	}
	for (int64 i = 0; i < made->probe_count; i++)
	{
		const int64 place = place_of_probe(made, i);

		CHECK_FOR_INTERRUPTS();
		made->expected_hits += marks[place / 8] >> (place % 8) & 1;
	}
	pfree(marks);
	return made;
}
