\echo Use "CREATE EXTENSION hash_2008" to load this file. \quit

CREATE FUNCTION hash_2008_handler(internal) RETURNS index_am_handler
    LANGUAGE C AS 'MODULE_PATHNAME';
CREATE ACCESS METHOD hash_2008 TYPE INDEX HANDLER hash_2008_handler;
COMMENT ON ACCESS METHOD hash_2008 IS
    'hash index with values (store = value), as up to 8.3, or hash codes (store = code), as from 8.4 on';

CREATE OPERATOR CLASS int4_ops DEFAULT FOR TYPE int4 USING hash_2008 AS
    OPERATOR 1 = (int4, int4),
    FUNCTION 1 hashint4(int4);
CREATE OPERATOR CLASS int8_ops DEFAULT FOR TYPE int8 USING hash_2008 AS
    OPERATOR 1 = (int8, int8),
    FUNCTION 1 hashint8(int8);
CREATE OPERATOR CLASS float8_ops DEFAULT FOR TYPE float8 USING hash_2008 AS
    OPERATOR 1 = (float8, float8),
    FUNCTION 1 hashfloat8(float8);
CREATE OPERATOR CLASS text_ops DEFAULT FOR TYPE text USING hash_2008 AS
    OPERATOR 1 = (text, text),
    FUNCTION 1 hashtext(text);

CREATE FUNCTION hash_2008_check(
    index regclass,
    OUT store text, OUT presorted bool, OUT entries int8, OUT bucket_fill int4, OUT buckets int8,
    OUT overflow_pages int8, OUT free_pages int8, OUT longest_chain int4
) LANGUAGE C STRICT VOLATILE AS 'MODULE_PATHNAME';
COMMENT ON FUNCTION hash_2008_check(regclass) IS
    'check every page of a hash_2008 index, and count what is on them';
