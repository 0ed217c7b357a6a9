-- name: to_char of a time
-- expect: > 1.03
SELECT count(to_char(t, 'YYYY-MM-DD HH24:MI:SS TZ')) FROM times;
-- name: time as text
-- control
SELECT count(t::text) FROM times;
