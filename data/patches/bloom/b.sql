-- name: one row in a hundred joins
-- expect: < 1
SELECT count(*) FROM fact JOIN dim ON dim.id = fact.d1 WHERE dim.kind = 7;
-- name: all rows join
-- control
SELECT count(*) FROM fact JOIN dim ON dim.id = fact.d1;
