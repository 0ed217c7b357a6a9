-- Look every key of a small table up by both stores; one key in four stands twice.
CREATE UNLOGGED TABLE hash_2008_self_test AS SELECT k % 3000 AS k, md5((k % 3000)::text) AS t FROM generate_series(1, 4000) k;

CREATE INDEX hash_2008_self_test_k ON hash_2008_self_test USING hash_2008 (k) WITH (store = value);

CREATE INDEX hash_2008_self_test_t ON hash_2008_self_test USING hash_2008 (t) WITH (store = code, presort = on);

ANALYZE hash_2008_self_test;

SET enable_seqscan = off;

SET enable_hashjoin = off;

SET enable_mergejoin = off;

CREATE TEMP TABLE hash_2008_self_test_found AS
SELECT (SELECT count(*) FROM hash_2008_self_test a JOIN hash_2008_self_test b ON b.k = a.k) AS by_value,
    (SELECT count(*) FROM hash_2008_self_test a JOIN hash_2008_self_test b ON b.t = a.t) AS by_code,
    (hash_2008_check('hash_2008_self_test_k')).entries + (hash_2008_check('hash_2008_self_test_t')).entries AS entries;

DROP TABLE hash_2008_self_test;

SELECT (by_value, by_code, entries) = (6000, 6000, 8000),
    format('values and codes found %s and %s of 6000 pairs', by_value, by_code)
FROM hash_2008_self_test_found;
