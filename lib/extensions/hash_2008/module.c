/*
 * module.c
 *		The access method's description and its WITH options.
 */
#include "hash_2008.h"

#include "access/reloptions.h"
#include "commands/vacuum.h"
#include "fmgr.h"
#include "nodes/nodes.h"
#include "utils/index_selfuncs.h"

PG_MODULE_MAGIC;

static relopt_kind options_kind;

static relopt_enum_elt_def stores[] = {
	{"value", STORE_VALUE},
	{"code", STORE_CODE},
	{(const char *) NULL}
};

static relopt_enum_elt_def presorts[] = {
	{"auto", PRESORT_AUTO},
	{"on", PRESORT_ON},
	{"off", PRESORT_OFF},
	{(const char *) NULL}
};

extern PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	options_kind = add_reloption_kind();
	add_int_reloption(options_kind, "fillfactor",
					  "How full a bucket's page should be, in percent.",
					  DEFAULT_FILLFACTOR, 10, 100, AccessExclusiveLock);
	add_enum_reloption(options_kind, "store",
					   "What an entry holds; for an index that is built from now on.",
					   stores, STORE_CODE,
					   "Valid values are \"value\" and \"code\".", AccessExclusiveLock);
	add_enum_reloption(options_kind, "presort",
					   "Whether a build sorts the entries by bucket first.",
					   presorts, PRESORT_AUTO,
					   "Valid values are \"auto\", \"on\" and \"off\".", AccessExclusiveLock);
}

static bytea *
hash_2008_options(Datum options, bool validate)
{
	static const relopt_parse_elt known[] = {
		{.optname = "fillfactor", .opttype = RELOPT_TYPE_INT, .offset = offsetof(Options, fillfactor)},
		{.optname = "store", .opttype = RELOPT_TYPE_ENUM, .offset = offsetof(Options, store)},
		{.optname = "presort", .opttype = RELOPT_TYPE_ENUM, .offset = offsetof(Options, presort)},
	};

	return (bytea *) build_reloptions(options, validate, options_kind, sizeof(Options),
									  known, lengthof(known));
}

/* The operator classes are the extension's own. */
static bool
hash_2008_validate(Oid opclass)
{
	return true;
}

static const IndexAmRoutine routine = {
	.type = T_IndexAmRoutine,
	.amstrategies = 1,
	.amsupport = 1,
	.amparallelvacuumoptions = VACUUM_OPTION_NO_PARALLEL,
	.ambuild = hash_2008_build,
	.ambuildempty = hash_2008_build_empty,
	.aminsert = hash_2008_insert,
	.ambulkdelete = hash_2008_bulk_delete,
	.amvacuumcleanup = hash_2008_vacuum_cleanup,
	.amcostestimate = hashcostestimate,
	.amoptions = hash_2008_options,
	.amvalidate = hash_2008_validate,
	.ambeginscan = hash_2008_begin_scan,
	.amrescan = hash_2008_rescan,
	.amgettuple = hash_2008_get_tuple,
	.amgetbitmap = hash_2008_get_bitmap,
	.amendscan = hash_2008_end_scan,
};

PG_FUNCTION_INFO_V1(hash_2008_handler);

Datum
hash_2008_handler(PG_FUNCTION_ARGS)
{
#if PG_VERSION_NUM >= 190000
	PG_RETURN_POINTER(&routine);
#else
	/* The caller frees it. */
	IndexAmRoutine *copy = palloc(sizeof(routine));

	memcpy(copy, &routine, sizeof(routine));
	PG_RETURN_POINTER(copy);
#endif
}
