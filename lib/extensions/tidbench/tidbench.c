/*
 * tidbench.c
 *		What SQL sees: prepare a workload, load a structure with it, and look
 *		its probes up, all at once or some at a time, in one session.
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

/* What is loaded with it; the context is a child of the workload's, NULL where nothing is. */
static struct
{
	const Structure *structure;
	void	   *set;
	MemoryContext context;
}			loaded;

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
		loaded.context = NULL;
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

static void
check_prepared(void)
{
	if (workload == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("nothing is prepared in this session"),
				 errhint("Call tidbench_prepare() first.")));
}

static void
unload(void)
{
	if (loaded.context != NULL)
	{
		MemoryContext context = loaded.context;

		loaded.context = NULL;
		MemoryContextDelete(context);
	}
}

PG_FUNCTION_INFO_V1(tidbench_load);

Datum
tidbench_load(PG_FUNCTION_ARGS)
{
	const Structure *structure = structure_named(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	MemoryContext context,
				before;
	Times		load = {0};
	Datum		values[3];

	check_prepared();
	unload();
	/* Below the transaction's context until it is whole: an error or a cancel frees it. */
	context = AllocSetContextCreate(CurTransactionContext, "tidbench structure",
									ALLOCSET_DEFAULT_SIZES);
	before = MemoryContextSwitchTo(context);
	start(&load);
	loaded.set = structure->load(workload->dead, workload->dead_count);
	stop(&load);
	MemoryContextSwitchTo(before);
	loaded.structure = structure;
	loaded.context = context;
	MemoryContextSetParent(context, workload->context);
	values[0] = Int64GetDatum((int64) MemoryContextMemAllocated(context, true));
	values[1] = Int64GetDatum(load.wall);
	values[2] = Int64GetDatum(load.cpu);
	PG_RETURN_DATUM(row_of(fcinfo, values));
}

/*
 * Look probes up and return how many were found.
 */
static int64
look_up(int64 first, int64 count, Times *times)
{
	const int64 at_a_time = Min(count, PROBES_AT_A_TIME);
	ItemPointerData *probes = palloc(Max(at_a_time, 1) * sizeof(ItemPointerData));
	int64		hits = 0;

	for (int64 done = 0; done < count; done += at_a_time)
	{
		const int64 now = Min(count - done, at_a_time);

		make_probes(workload, first + done, now, probes);
		start(times);
		for (int64 i = 0; i < now; i++)
		{
			CHECK_FOR_INTERRUPTS();
			hits += loaded.structure->contains(loaded.set, &probes[i]);
		}
		stop(times);
	}
	pfree(probes);
	return hits;
}

PG_FUNCTION_INFO_V1(tidbench_look_up);

Datum
tidbench_look_up(PG_FUNCTION_ARGS)
{
	const int64 first = PG_GETARG_INT64(0);
	int64		count = PG_GETARG_INT64(1);
	Times		lookup = {0};
	int64		hits,
				expected;
	Datum		values[4];

	check_prepared();
	if (loaded.context == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("no structure is loaded in this session"),
				 errhint("Call tidbench_load() first.")));
	if (count == 0)
		count = workload->probe_count - first;
	if (first < 0 || count < 0 || first > workload->probe_count - count)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("probes %lld to %lld are not among the %lld that were prepared",
						(long long) first, (long long) (first + count),
						(long long) workload->probe_count)));
	hits = look_up(first, count, &lookup);

	/* The first structure does nothing, so that it is known what the loop itself takes. */
	expected = loaded.structure == structures[0] ? 0 : workload->expected_hits;
	if (count == workload->probe_count && hits != expected)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("structure \"%s\" found %lld of %lld probes, and not %lld",
						loaded.structure->name, (long long) hits, (long long) count,
						(long long) expected)));
	values[0] = Int64GetDatum(lookup.wall);
	values[1] = Int64GetDatum(lookup.cpu);
	values[2] = Int64GetDatum(count);
	values[3] = Int64GetDatum(hits);
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
