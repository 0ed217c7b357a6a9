/*
 * tidbench.c
 *		What SQL sees: prepare a workload once, then run one structure after
 *		another over it, in one session.
 */
#include "postgres.h"

#include <time.h>

#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "structure.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "workload.h"

PG_MODULE_MAGIC;

/*
 * So many probes are made at a time, while no clock runs: all of them would
 * take 6 GB in the post's sparse case.
 */
#define PROBES_AT_A_TIME (1 << 20)

static Workload *workload = NULL;

/* Nanoseconds, by the wall and of this process. */
typedef struct Times
{
	int64		wall;
	int64		cpu;
} Times;

static int64
read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (int64) now.tv_sec * 1000000000 + now.tv_nsec;
}

static void
start(Times *times)
{
	times->cpu -= read_clock(CLOCK_THREAD_CPUTIME_ID);
	times->wall -= read_clock(CLOCK_MONOTONIC);
}

static void
stop(Times *times)
{
	times->wall += read_clock(CLOCK_MONOTONIC);
	times->cpu += read_clock(CLOCK_THREAD_CPUTIME_ID);
}

static Datum
row_of(FunctionCallInfo fcinfo, Datum *values)
{
	TupleDesc	columns;
	bool		nulls[16] = {false};

	if (get_call_result_type(fcinfo, NULL, &columns) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	Assert(columns->natts <= (int) lengthof(nulls));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(columns), values, nulls));
}

static void
release(void)
{
	if (workload != NULL)
	{
		MemoryContext context = workload->context;

		workload = NULL;
		MemoryContextDelete(context);
	}
}

static Datum
keep(FunctionCallInfo fcinfo, Workload *made)
{
	Datum		values[] = {
		Int64GetDatum(made->dead_count),
		Int64GetDatum(made->index_count),
		Int64GetDatum(made->probe_count),
		Int64GetDatum(made->expected_hits),
	};

	MemoryContextSetParent(made->context, TopMemoryContext);
	workload = made;
	return row_of(fcinfo, values);
}

PG_FUNCTION_INFO_V1(tidbench_prepare);

Datum
tidbench_prepare(PG_FUNCTION_ARGS)
{
	Shape		shape = {
		.blocks = PG_GETARG_INT64(0),
		.dead_per_page = PG_GETARG_INT64(1),
		.interval = PG_GETARG_INT64(2),
		.consecutive = PG_GETARG_INT64(3),
		.page_interval = PG_GETARG_INT64(4),
	};
	Sampling	sampling = {
		.probes = PG_GETARG_INT64(5),
		.seed = (uint32) PG_GETARG_INT32(6),
		.shuffled = PG_GETARG_BOOL(7),
	};

	release();
	PG_RETURN_DATUM(keep(fcinfo, workload_of_shape(&shape, &sampling)));
}

PG_FUNCTION_INFO_V1(tidbench_prepare_tids);

Datum
tidbench_prepare_tids(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	Size		offset;
	Sampling	sampling = {
		.probes = PG_GETARG_INT64(3),
		.seed = (uint32) PG_GETARG_INT32(4),
		.shuffled = PG_GETARG_BOOL(5),
	};

	if (ARR_NDIM(array) > 1 || array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("dead TIDs must be an array of one dimension without NULLs")));
	release();
	/* TIDs lie in an array of SQL as they do in one of C: six bytes, aligned to two. */
	offset = ARR_HASNULL(array) ? (Size) array->dataoffset : ARR_OVERHEAD_NONULLS(ARR_NDIM(array));
	PG_RETURN_DATUM(keep(fcinfo,
						 workload_of_tids(PG_GETARG_INT64(1), PG_GETARG_INT64(2),
										  (ItemPointerData *) ((char *) array + offset),
										  ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)),
										  &sampling)));
}

PG_FUNCTION_INFO_V1(tidbench_release);

Datum
tidbench_release(PG_FUNCTION_ARGS)
{
	release();
	PG_RETURN_VOID();
}

static const Structure *
structure_named(const char *name)
{
	for (int i = 0; i < structure_count; i++)
		if (strcmp(structures[i]->name, name) == 0)
			return structures[i];
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("there is no structure \"%s\"", name),
			 errhint("tidbench_structures() lists those there are.")));
}

/*
 * Look all probes up and return how many were found.
 */
static int64
look_up(const Structure *structure, const void *set, Times *times)
{
	const int64 at_a_time = Min(workload->probe_count, PROBES_AT_A_TIME);
	ItemPointerData *probes = palloc(at_a_time * sizeof(ItemPointerData));
	int64		hits = 0;

	for (int64 first = 0; first < workload->probe_count; first += at_a_time)
	{
		const int64 count = Min(workload->probe_count - first, at_a_time);

		make_probes(workload, first, count, probes);
		start(times);
		for (int64 i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			hits += structure->contains(set, &probes[i]);
		}
		stop(times);
	}
	pfree(probes);
	return hits;
}

PG_FUNCTION_INFO_V1(tidbench_run);

Datum
tidbench_run(PG_FUNCTION_ARGS)
{
	const Structure *structure = structure_named(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	MemoryContext context,
				before;
	Times		load = {0},
				lookup = {0};
	void	   *set;
	int64		size,
				hits,
				expected;
	Datum		values[7];

	if (workload == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nothing is prepared in this session"),
				 errhint("Call tidbench_prepare() first.")));
	/* Below the transaction's context: an error or a cancel frees it. */
	context = AllocSetContextCreate(CurTransactionContext, "tidbench structure",
									ALLOCSET_DEFAULT_SIZES);
	before = MemoryContextSwitchTo(context);
	start(&load);
	set = structure->load(workload->dead, workload->dead_count);
	stop(&load);
	MemoryContextSwitchTo(before);
	size = (int64) MemoryContextMemAllocated(context, true);
	hits = look_up(structure, set, &lookup);
	MemoryContextDelete(context);

	/* The first one does nothing, so that it is known what the loop itself takes. */
	expected = structure == structures[0] ? 0 : workload->expected_hits;
	if (hits != expected)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("structure \"%s\" found %lld of %lld probes, and not %lld", structure->name,
						(long long) hits, (long long) workload->probe_count,
						(long long) expected)));
	values[0] = Int64GetDatum(size);
	values[1] = Int64GetDatum(load.wall);
	values[2] = Int64GetDatum(load.cpu);
	values[3] = Int64GetDatum(lookup.wall);
	values[4] = Int64GetDatum(lookup.cpu);
	values[5] = Int64GetDatum(workload->probe_count);
	values[6] = Int64GetDatum(hits);
	PG_RETURN_DATUM(row_of(fcinfo, values));
}

PG_FUNCTION_INFO_V1(tidbench_structures);

Datum
tidbench_structures(PG_FUNCTION_ARGS)
{
	Datum	   *names = palloc(structure_count * sizeof(Datum));

	for (int i = 0; i < structure_count; i++)
		names[i] = CStringGetTextDatum(structures[i]->name);
	PG_RETURN_ARRAYTYPE_P(construct_array(names, structure_count, TEXTOID, -1, false,
										  TYPALIGN_INT));
}
