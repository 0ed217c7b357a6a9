/*
 * entries.c
 *		Entries: what they hold, and their hash codes.
 */
#include "hash_2008.h"

#include "access/genam.h"
#include "fmgr.h"

uint32
hash_of(Relation index, Datum value)
{
	return DatumGetUInt32(FunctionCall1Coll(index_getprocinfo(index, 1, 1),
											index->rd_indcollation[0], value));
}

IndexTuple
form_entry(Relation index, Store store, Datum value, uint32 code, ItemPointer tid)
{
	IndexTuple	entry;

	if (store == STORE_VALUE)
	{
		bool		is_null = false;

		entry = index_form_tuple(RelationGetDescr(index), &value, &is_null);
	}
	else
	{
		CodeEntry  *of_code = palloc0(MAXALIGN(sizeof(CodeEntry)));

		of_code->code = code;
		entry = &of_code->tuple;
		entry->t_info = MAXALIGN(sizeof(CodeEntry));
	}
	entry->t_tid = *tid;
	return entry;
}

uint32
code_of_entry(Relation index, Store store, IndexTuple entry)
{
	bool		is_null;

	if (store == STORE_CODE)
		return ((CodeEntry *) entry)->code;
	return hash_of(index, index_getattr(entry, 1, RelationGetDescr(index), &is_null));
}

/*
 * The first entry of a sorted page whose code is not less than this one, or
 * where it would be added.
 */
OffsetNumber
first_with_code(Page page, uint32 code)
{
	OffsetNumber low = FirstOffsetNumber,
				high = OffsetNumberNext(PageGetMaxOffsetNumber(page));

	while (low < high)
	{
		OffsetNumber middle = low + (high - low) / 2;

		if (((CodeEntry *) GetEntry(page, middle))->code < code)
			low = OffsetNumberNext(middle);
		else
			high = middle;
	}
	return low;
}
