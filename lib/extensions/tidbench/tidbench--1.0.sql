\echo Use "CREATE EXTENSION tidbench" to load this file. \quit

CREATE FUNCTION tidbench_prepare(
    blocks int8, dead_per_page int8, "interval" int8, consecutive int8, page_interval int8,
    probes int8 DEFAULT 0, seed int4 DEFAULT 1, shuffled bool DEFAULT true,
    OUT dead_count int8, OUT index_count int8, OUT probe_count int8, OUT expected_hits int8
) LANGUAGE C STRICT VOLATILE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION tidbench_prepare(int8, int8, int8, int8, int8, int8, int4, bool) IS
    'make the dead TIDs of a table of that shape, and choose the TIDs to look up; for this session';

CREATE FUNCTION tidbench_prepare_tids(
    tids tid[], blocks int8, rows_per_page int8,
    probes int8 DEFAULT 0, seed int4 DEFAULT 1, shuffled bool DEFAULT true,
    OUT dead_count int8, OUT index_count int8, OUT probe_count int8, OUT expected_hits int8
) LANGUAGE C STRICT VOLATILE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION tidbench_prepare_tids(tid[], int8, int8, int8, int4, bool) IS
    'the same with the dead TIDs of a real table, in ascending order';

CREATE FUNCTION tidbench_load(
    structure text,
    OUT size_bytes int8, OUT load_ns int8, OUT load_cpu_ns int8
) LANGUAGE C STRICT VOLATILE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION tidbench_load(text) IS
    'load a structure with the dead TIDs, in place of one that is loaded';

CREATE FUNCTION tidbench_look_up(
    first int8 DEFAULT 0, count int8 DEFAULT 0,
    OUT lookup_ns int8, OUT lookup_cpu_ns int8, OUT probe_count int8, OUT hits int8
) LANGUAGE C STRICT VOLATILE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION tidbench_look_up(int8, int8) IS
    'look so many probes up, from that one on, 0 for all the rest; times are for all of them';

CREATE FUNCTION tidbench_structures() RETURNS text[]
    LANGUAGE C STABLE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION tidbench_structures() IS
    'the structures there are, beginning with one that does nothing';

CREATE FUNCTION tidbench_release() RETURNS void
    LANGUAGE C AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION tidbench_release() IS
    'free what was prepared and loaded';
