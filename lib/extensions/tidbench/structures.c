/*
 * structures.c
 *		The structures that PostgreSQL has itself, each used as it is there.
 */
#include "structure.h"

#if PG_VERSION_NUM >= 170000
#include "access/tidstore.h"
#endif
#include "common/hashfn.h"
#include "lib/integerset.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

/* Nothing at all: what the loop and the calls cost. */

static void *
nothing_load(const ItemPointerData *dead, int64 count)
{
	return NULL;
}

static bool
nothing_contains(const void *set, const ItemPointerData *tid)
{
	return false;
}

static const Structure nothing = {"nothing", nothing_load, nothing_contains};

/*
 * A sorted array and the C library's bsearch(): VACUUM up to 16.  Filled TID by
 * TID, as there and in bdbench.
 */

typedef struct Array
{
	int64		count;
	uint64		first,
				last;
	ItemPointerData tids[FLEXIBLE_ARRAY_MEMBER];
} Array;

static void *
array_load(const ItemPointerData *dead, int64 count)
{
	Size		size = offsetof(Array, tids) + count * sizeof(ItemPointerData);
	Array	   *array = MemoryContextAllocHuge(CurrentMemoryContext, size);

	array->count = count;
	array->first = tid_number(&dead[0]);
	array->last = tid_number(&dead[count - 1]);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		ItemPointerSet(&array->tids[i],
					   ItemPointerGetBlockNumberNoCheck(&dead[i]),
					   ItemPointerGetOffsetNumberNoCheck(&dead[i]));
	}
	return array;
}

static int
compare_tids(const void *left, const void *right)
{
	BlockNumber left_block = ItemPointerGetBlockNumberNoCheck((const ItemPointerData *) left);
	BlockNumber right_block = ItemPointerGetBlockNumberNoCheck((const ItemPointerData *) right);
	OffsetNumber left_offset,
				right_offset;

	if (left_block != right_block)
		return left_block < right_block ? -1 : 1;
	left_offset = ItemPointerGetOffsetNumberNoCheck((const ItemPointerData *) left);
	right_offset = ItemPointerGetOffsetNumberNoCheck((const ItemPointerData *) right);
	return left_offset < right_offset ? -1 : left_offset > right_offset;
}

static bool
array_contains(const void *set, const ItemPointerData *tid)
{
	const Array *array = set;
	uint64		number = tid_number(tid);

	if (number < array->first || number > array->last)
		return false;
	return bsearch(tid, array->tids, array->count, sizeof(ItemPointerData), compare_tids) != NULL;
}

static const Structure array = {"array", array_load, array_contains};

/* dynahash, its key the TID and nothing beside it. */

static void *
hash_load(const ItemPointerData *dead, int64 count)
{
	HASHCTL		control = {
		.keysize = sizeof(ItemPointerData),
		.entrysize = sizeof(ItemPointerData),
		.hcxt = CurrentMemoryContext,
	};
	HTAB	   *table = hash_create("tidbench hash", count, &control,
									HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		hash_search(table, &dead[i], HASH_ENTER, NULL);
	}
	return table;
}

static bool
hash_contains(const void *set, const ItemPointerData *tid)
{
	return hash_search(unconstify(HTAB *, (const HTAB *) set), tid, HASH_FIND, NULL) != NULL;
}

static const Structure hash = {"hash", hash_load, hash_contains};

/* lib/integerset. */

static void *
intset_load(const ItemPointerData *dead, int64 count)
{
	IntegerSet *set = intset_create();

	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		intset_add_member(set, tid_number(&dead[i]));
	}
	return set;
}

static bool
intset_contains(const void *set, const ItemPointerData *tid)
{
	return intset_is_member(unconstify(IntegerSet *, (const IntegerSet *) set), tid_number(tid));
}

static const Structure intset = {"intset", intset_load, intset_contains};

/*
 * The page table of a TIDBitmap.  tidbitmap.c has no test for one TID, and its
 * entries are private; this is the same entry in the same simplehash with the
 * same hash function, and takes as much memory to the byte.
 */

#define WORDS_PER_PAGE ((MaxHeapTuplesPerPage - 1) / BITS_PER_BITMAPWORD + 1)
#define WORDS_PER_CHUNK ((BLCKSZ / 32 - 1) / BITS_PER_BITMAPWORD + 1)

typedef struct PageEntry
{
	BlockNumber blockno;
	char		status;
	bool		ischunk;
	bool		recheck;
	bitmapword	words[Max(WORDS_PER_PAGE, WORDS_PER_CHUNK)];
} PageEntry;

#define SH_PREFIX pages
#define SH_ELEMENT_TYPE PageEntry
#define SH_KEY_TYPE BlockNumber
#define SH_KEY blockno
#define SH_HASH_KEY(table, key) murmurhash32(key)
#define SH_EQUAL(table, a, b) (a) == (b)
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static void *
tbm_load(const ItemPointerData *dead, int64 count)
{
	pages_hash *table = pages_create(CurrentMemoryContext, 128, NULL);
	PageEntry  *entry = NULL;

	for (int64 i = 0; i < count; i++)
	{
		BlockNumber block = ItemPointerGetBlockNumberNoCheck(&dead[i]);
		int			bit = ItemPointerGetOffsetNumberNoCheck(&dead[i]) - 1;

		CHECK_FOR_INTERRUPTS();
		if (entry == NULL || entry->blockno != block)
		{
			bool		found;

			entry = pages_insert(table, block, &found);
			entry->ischunk = entry->recheck = false;
			memset(entry->words, 0, sizeof(entry->words));
		}
		entry->words[bit / BITS_PER_BITMAPWORD] |= (bitmapword) 1 << (bit % BITS_PER_BITMAPWORD);
	}
	return table;
}

static bool
tbm_contains(const void *set, const ItemPointerData *tid)
{
	pages_hash *table = unconstify(pages_hash *, (const pages_hash *) set);
	PageEntry  *entry = pages_lookup(table, ItemPointerGetBlockNumberNoCheck(tid));
	int			bit = ItemPointerGetOffsetNumberNoCheck(tid) - 1;

	return entry != NULL &&
		(entry->words[bit / BITS_PER_BITMAPWORD] >> (bit % BITS_PER_BITMAPWORD) & 1) != 0;
}

static const Structure tbm = {"tbm", tbm_load, tbm_contains};

#if PG_VERSION_NUM >= 170000

/* lib/radixtree.h, with the keys and values that the post's trees had. */

#define RT_PREFIX words
#define RT_SCOPE static inline
#define RT_DECLARE
#define RT_DEFINE
#define RT_VALUE_TYPE uint64
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#include "lib/radixtree.h"
#pragma GCC diagnostic pop

static void *
radix_tree_load(const ItemPointerData *dead, int64 count)
{
	words_radix_tree *tree = words_create(CurrentMemoryContext);

	for (int64 i = 0; i < count;)
	{
		uint64		value;
		uint64		key = next_word(dead, count, &i, &value);

		CHECK_FOR_INTERRUPTS();
		words_set(tree, key, &value);
	}
	return tree;
}

static bool
radix_tree_contains(const void *set, const ItemPointerData *tid)
{
	words_radix_tree *tree = unconstify(words_radix_tree *, (const words_radix_tree *) set);
	uint64		number = tid_number(tid);
	uint64	   *value = words_find(tree, key_of(number));

	return value != NULL && (*value & bit_of(number)) != 0;
}

static const Structure radix_tree = {"radix_tree", radix_tree_load, radix_tree_contains};

/* What shipped: VACUUM since 17. */

static void *
tidstore_load(const ItemPointerData *dead, int64 count)
{
	/* The limit only bounds the size of its blocks, as maintenance_work_mem of 1 GB would. */
	TidStore   *store = TidStoreCreateLocal((size_t) 1 << 30, true);
	OffsetNumber offsets[MaxHeapTuplesPerPage];

	for (int64 i = 0; i < count;)
	{
		BlockNumber block = ItemPointerGetBlockNumberNoCheck(&dead[i]);
		int			of_block = 0;

		CHECK_FOR_INTERRUPTS();
		for (; i < count && ItemPointerGetBlockNumberNoCheck(&dead[i]) == block; i++)
			offsets[of_block++] = ItemPointerGetOffsetNumberNoCheck(&dead[i]);
		TidStoreSetBlockOffsets(store, block, offsets, of_block);
	}
	return store;
}

static bool
tidstore_contains(const void *set, const ItemPointerData *tid)
{
	return TidStoreIsMember(unconstify(TidStore *, (const TidStore *) set),
							unconstify(ItemPointerData *, tid));
}

static const Structure tidstore = {"tidstore", tidstore_load, tidstore_contains};

#endif

const Structure *const structures[] = {
	&nothing, &array, &hash, &intset, &tbm, &radix,
#if PG_VERSION_NUM >= 170000
	&radix_tree, &tidstore,
#endif
};
const int	structure_count = lengthof(structures);
