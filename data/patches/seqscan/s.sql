-- name: one in a thousand
-- expect: < 1
SELECT count(*) FROM facts WHERE c = 7;
-- name: two conditions
-- expect: < 1
SELECT count(*) FROM facts WHERE b < 50 AND c > 500;
-- name: all rows
SELECT count(*) FROM facts;
-- name: sum
-- control
SELECT sum(length(md5(i::text))) FROM generate_series(1, 10000) AS i;
