/*
 * hash_2008.h
 *		A hash index in two versions: store = value, as PostgreSQL had it up to
 *		8.3, and store = code, as from 8.4 on.
 *
 * Linear hashing in pages of 8 kB, through shared buffers.  Both versions have
 * the same metapage, buckets, overflow pages and splits.  They differ in what
 * an entry holds, and in what follows from that:
 *
 *	value	An entry is an index tuple of the value.  The entries of a page stand
 *			in the order they came.  A probe compares the value with each one, and
 *			a split hashes the values again.
 *	code	An entry is an index tuple of the hash code.  The entries of a page
 *			are sorted by it.  A probe searches each page by bisection, and leaves
 *			it to the executor to compare the row's value.
 *
 * How many entries a bucket should have, how many buckets an index starts with,
 * and whether its build sorts first, follow 8.4 as it was in September 2008.
 *
 * An index is for measuring, not for keeping data.  Only unlogged tables can
 * have one: it does not survive a crash, nor an error while a bucket is being
 * rewritten (a full disk).  The lock of the metapage is held throughout a probe
 * or an insertion, so there is one writer at a time, and no reader beside it.
 */
#ifndef HASH_2008_H
#define HASH_2008_H

#include "postgres.h"

#include "access/amapi.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

typedef enum Store
{
	STORE_VALUE,
	STORE_CODE,
} Store;

typedef enum Presort
{
	PRESORT_AUTO,
	PRESORT_ON,
	PRESORT_OFF,
} Presort;

/* The index's WITH options. */
typedef struct Options
{
	int32		vl_len_;
	int			fillfactor;
	int			store;
	int			presort;
} Options;

#define DEFAULT_FILLFACTOR	75
#define MOST_SPLITPOINTS	32
#define METAPAGE			0
#define MAGIC				0x20080914

/*
 * The metapage.  Buckets are allocated by doubling: at splitpoint s there are
 * 2^s.  Overflow pages lie behind the buckets of their splitpoint, spares[s] of
 * them behind the first 2^s buckets.
 */
typedef struct MetaPage
{
	uint32		magic;
	uint32		store;
	uint32		presorted;
	uint32		bucket_fill;	/* entries per bucket before one is split */
	uint64		entries;
	uint32		max_bucket;
	uint32		high_mask;
	uint32		low_mask;
	uint32		splitpoint;
	BlockNumber first_free;		/* overflow pages not in use, linked */
	BlockNumber spares[MOST_SPLITPOINTS];
} MetaPage;

#define GetMetaPage(buffer)	((MetaPage *) PageGetContents(BufferGetPage(buffer)))

typedef enum PageKind
{
	BUCKET_PAGE = 1,
	OVERFLOW_PAGE,
	FREE_PAGE,
} PageKind;

typedef struct PageTrailer
{
	BlockNumber next;
	uint32		bucket;
	uint16		kind;
	uint16		page_id;		/* for tools that look at pages */
} PageTrailer;

#define PAGE_ID				0x2008
#define GetPageTrailer(page) ((PageTrailer *) PageGetSpecialPointer(page))

/* An entry of store = code. */
typedef struct CodeEntry
{
	IndexTupleData tuple;
	uint32		code;
} CodeEntry;

#define GetEntry(page, offset)	((IndexTuple) PageGetItem(page, PageGetItemId(page, offset)))

/* Entries that are not on a page. */
typedef struct Entries
{
	IndexTuple *entries;
	uint32	   *codes;
	int			count;
	int			room;
} Entries;

/* entries.c */
extern uint32 hash_of(Relation index, Datum value);
extern IndexTuple form_entry(Relation index, Store store, Datum value, uint32 code,
							 ItemPointer tid);
extern uint32 code_of_entry(Relation index, Store store, IndexTuple entry);
extern OffsetNumber first_with_code(Page page, uint32 code);

/* pages.c */
extern void make_index(Relation index, ForkNumber fork, double rows);
extern Buffer lock_metapage(Relation index, int mode);
extern uint32 bucket_of_code(const MetaPage *meta, uint32 code);
extern BlockNumber block_of_bucket(const MetaPage *meta, uint32 bucket);
extern BlockNumber number_of_blocks(const MetaPage *meta);
extern Buffer read_page(Relation index, BlockNumber block, int mode);
extern void init_page(Page page, PageKind kind, uint32 bucket);
extern Buffer take_overflow_page(Relation index, MetaPage *meta, uint32 bucket);
extern void free_overflow_pages(Relation index, MetaPage *meta, BlockNumber first);
extern void add_splitpoint(Relation index, MetaPage *meta);

/* buckets.c */
extern void insert_entry(Relation index, IndexTuple entry, uint32 code);
extern Entries *read_bucket(Relation index, const MetaPage *meta, uint32 bucket);
extern void keep_entry(Entries *entries, IndexTuple entry, uint32 code);
extern Entries *no_entries(int room);
extern void rewrite_bucket(Relation index, MetaPage *meta, uint32 bucket, const Entries *entries);

/* build.c */
extern IndexBuildResult *hash_2008_build(Relation table, Relation index, struct IndexInfo *info);
extern void hash_2008_build_empty(Relation index);
extern bool hash_2008_insert(Relation index, Datum *values, bool *nulls, ItemPointer tid,
							 Relation table, IndexUniqueCheck check_unique,
							 bool unchanged, struct IndexInfo *info);

/* search.c */
extern IndexScanDesc hash_2008_begin_scan(Relation index, int keys, int orderbys);
extern void hash_2008_rescan(IndexScanDesc scan, ScanKey keys, int nkeys,
							 ScanKey orderbys, int norderbys);
extern bool hash_2008_get_tuple(IndexScanDesc scan, ScanDirection direction);
extern int64 hash_2008_get_bitmap(IndexScanDesc scan, TIDBitmap *bitmap);
extern void hash_2008_end_scan(IndexScanDesc scan);

/* vacuum.c */
extern IndexBulkDeleteResult *hash_2008_bulk_delete(IndexVacuumInfo *info,
													IndexBulkDeleteResult *stats,
													IndexBulkDeleteCallback callback,
													void *callback_state);
extern IndexBulkDeleteResult *hash_2008_vacuum_cleanup(IndexVacuumInfo *info,
													   IndexBulkDeleteResult *stats);

#endif
