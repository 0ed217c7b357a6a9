-- name: uuid from text
-- expect: < 0.7
SELECT count(v::uuid) FROM texts;
-- name: the texts alone
-- control
SELECT count(length(v)) FROM texts;
