-- Delete one row of every page, and insert them again from the last to the first.
CREATE TEMP TABLE cluster_heap_self_test (k int, d text) USING cluster_heap;

INSERT INTO cluster_heap_self_test SELECT k, repeat('x', 350) FROM generate_series(1, 420) k;

CREATE INDEX ON cluster_heap_self_test (k);

ALTER TABLE cluster_heap_self_test CLUSTER ON cluster_heap_self_test_k_idx;

DELETE FROM cluster_heap_self_test WHERE k % 21 = 10;

VACUUM cluster_heap_self_test;

INSERT INTO cluster_heap_self_test SELECT k, repeat('x', 350) FROM generate_series(399 + 10, 1, -21) k;

SELECT count(*) = 20, format('%s of 20 rows were put beside their neighbours', count(*))
FROM cluster_heap_self_test a JOIN cluster_heap_self_test b ON b.k = a.k - 1
WHERE a.k % 21 = 10 AND (a.ctid::text::point)[0] = (b.ctid::text::point)[0];
