/*
 * module.c
 *		Put a new row on the heap page that its neighbour in the clustering
 *		index is on.
 *
 * This is what a patch of 2007 did inside the server, which asked the index
 * for a page before it inserted the row.  Here the server is as it is, and
 * there are two ways in:
 *
 * - the table access method cluster_heap, which is heap but for where a new
 *	 row goes; it serves INSERT and COPY;
 * - the trigger cluster_heap(), BEFORE INSERT FOR EACH ROW, on a table of
 *	 heap.  It serves INSERT only: COPY remembers its page in a place that a
 *	 trigger cannot reach, and does not look at the table's target block.
 *
 * Both look for the entry of the index next to which the new one will be, and
 * make the page of that entry's row the relation's target block, which heap
 * tries first.  If there is no room on it, heap goes on as it always does.
 *
 * The patch found the entry and inserted the new one in a single descent of
 * the index; here there are two.
 */
#include "cluster_heap.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/guc.h"
#include "utils/rel.h"

PG_MODULE_MAGIC;

static const struct config_enum_entry neighbours[] = {
	{"before", NEIGHBOUR_BEFORE, false},
	{"after", NEIGHBOUR_AFTER, false},
	{NULL, 0, false}
};

int			neighbour = NEIGHBOUR_BEFORE;
bool		check_room = false;
bool		use_reserve = false;
RowCounts	row_counts = {0};

extern PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	DefineCustomEnumVariable("cluster_heap.neighbour",
							 "Which neighbour in the clustering index a new row is put beside.",
							 NULL, &neighbour, NEIGHBOUR_BEFORE, neighbours,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("cluster_heap.check_room",
							 "Look at the neighbour's page first, and leave it alone if it is full.",
							 "A page that is suggested in vain becomes the one where the search for "
							 "room begins.",
							 &check_room, false, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("cluster_heap.use_reserve",
							 "Let rows that are put beside a neighbour use what fillfactor keeps free.",
							 "Implies cluster_heap.check_room; by the access method only.",
							 &use_reserve, false, PGC_USERSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("cluster_heap");
	watch_clusterings();
	watch_index_builds();
}

/*
 * What is generated is computed after the triggers, so one sees a NULL there.
 */
static void
refuse_generated_key(Relation table, const IndexInfo *info)
{
	TupleDesc	columns = RelationGetDescr(table);

	for (int i = 0; i < info->ii_NumIndexKeyAttrs; i++)
	{
		AttrNumber	column = info->ii_IndexAttrNumbers[i];

		if (column > 0 && TupleDescAttr(columns, column - 1)->attgenerated != '\0')
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cluster_heap() cannot follow an index on generated column \"%s\"",
							NameStr(TupleDescAttr(columns, column - 1)->attname)),
					 errhint("The access method cluster_heap can.")));
	}
}

/*
 * cluster_heap() RETURNS trigger
 *
 * While rows are put beside their neighbours, the target block is theirs.  A
 * row without one is to go on where the last such row went, and not beside
 * somebody else's neighbour.
 */
PG_FUNCTION_INFO_V1(cluster_heap);

Datum
cluster_heap(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Relation	table;
	Clustering *clustering;
	BlockNumber block;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("cluster_heap() must be fired BEFORE INSERT FOR EACH ROW")));
	if (use_reserve)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cluster_heap() cannot let rows use what fillfactor keeps free"),
				 errhint("The access method cluster_heap can; else SET cluster_heap.use_reserve "
						 "= off.")));
	table = data->tg_relation;
	clustering = clustering_of(table);
	if (OidIsValid(clustering->index))
		refuse_generated_key(table, clustering->info);
	if (!clustering->was_suggested)
		clustering->usual = RelationGetTargetBlock(table);
	block = suggest_block(table, clustering, data->tg_trigslot, data->tg_trigtuple->t_len,
						  check_room);
	clustering->was_suggested = block != InvalidBlockNumber;
	RelationSetTargetBlock(table, clustering->was_suggested ? block : clustering->usual);
	return PointerGetDatum(data->tg_trigtuple);
}

/*
 * cluster_heap_rows(reset bool) RETURNS (seen, suggested, placed, refused, alone)
 */
PG_FUNCTION_INFO_V1(cluster_heap_rows);

Datum
cluster_heap_rows(PG_FUNCTION_ARGS)
{
	TupleDesc	columns;
	Datum		values[] = {
		Int64GetDatum(row_counts.seen),
		Int64GetDatum(row_counts.suggested),
		Int64GetDatum(row_counts.placed),
		Int64GetDatum(row_counts.refused),
		Int64GetDatum(row_counts.alone),
	};
	bool		nulls[lengthof(values)] = {false};

	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (PG_GETARG_BOOL(0))
		row_counts = (RowCounts) {0};
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(columns), values, nulls)));
}
