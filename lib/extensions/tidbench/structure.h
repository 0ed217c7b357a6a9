/*
 * structure.h
 *		What every structure under test offers: it is loaded once with dead TIDs
 *		in the order of the table, and then asked for one TID at a time.
 */
#ifndef TIDBENCH_STRUCTURE_H
#define TIDBENCH_STRUCTURE_H

#include "postgres.h"

#include "access/htup_details.h"
#include "storage/itemptr.h"

typedef struct Structure
{
	const char *name;

	/*
	 * All that is allocated goes into the current context or a child of it.
	 * There is at least one TID, they ascend, and none is there twice.
	 */
	void	   *(*load) (const ItemPointerData *dead, int64 count);
	bool		(*contains) (const void *set, const ItemPointerData *tid);
} Structure;

extern const Structure *const structures[];
extern const int structure_count;

extern const Structure radix;	/* radix.c */

/*
 * A TID as one number, in 64 bits from the beginning: a block number shifted
 * as the 32 bits that it is loses its upper bits from block 8,388,608 on.
 */
#define OFFSET_BITS (9 + (BLCKSZ > 8192) + (BLCKSZ > 16384))

StaticAssertDecl(MaxHeapTuplesPerPage < (1 << OFFSET_BITS), "offsets need more bits");

static inline uint64
tid_number(const ItemPointerData *tid)
{
	return ((uint64) ItemPointerGetBlockNumberNoCheck(tid) << OFFSET_BITS) |
		ItemPointerGetOffsetNumberNoCheck(tid);
}

/*
 * 64 consecutive numbers share a key; the value has a bit for each of them.
 */
#define VALUE_BITS 6
#define key_of(number) ((number) >> VALUE_BITS)
#define bit_of(number) (UINT64CONST(1) << ((number) & ((1 << VALUE_BITS) - 1)))

/*
 * The next key of ascending TIDs and its bits; *i becomes the place after them.
 */
static inline uint64
next_word(const ItemPointerData *dead, int64 count, int64 *i, uint64 *value)
{
	uint64		key = key_of(tid_number(&dead[*i]));

	for (*value = 0; *i < count && key_of(tid_number(&dead[*i])) == key; (*i)++)
		*value |= bit_of(tid_number(&dead[*i]));
	return key;
}

#endif
