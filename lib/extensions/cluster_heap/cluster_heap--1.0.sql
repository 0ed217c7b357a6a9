\echo Use "CREATE EXTENSION cluster_heap" to load this file. \quit

CREATE FUNCTION cluster_heap() RETURNS trigger
    LANGUAGE C AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION cluster_heap() IS
    'BEFORE INSERT FOR EACH ROW: put the row beside its neighbour in the clustering index';

CREATE FUNCTION cluster_heap_handler(internal) RETURNS table_am_handler
    LANGUAGE C AS 'MODULE_PATHNAME';
CREATE ACCESS METHOD cluster_heap TYPE TABLE HANDLER cluster_heap_handler;
COMMENT ON ACCESS METHOD cluster_heap IS
    'heap, with new rows beside their neighbours in the clustering index';

CREATE FUNCTION cluster_heap_rows(
    reset bool DEFAULT false,
    OUT seen int8, OUT suggested int8, OUT placed int8, OUT refused int8, OUT alone int8
) LANGUAGE C STRICT VOLATILE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION cluster_heap_rows(bool) IS
    'what became of the rows that this session has inserted so far';
