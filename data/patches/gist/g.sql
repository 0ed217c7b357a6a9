-- name: create index
-- expect: < 0.945
BEGIN; CREATE INDEX ON docs USING gist (v); ROLLBACK;
-- name: scan
-- control
SELECT count(*) FROM docs WHERE v @@ 'w17'::tsquery;
