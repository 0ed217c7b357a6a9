-- name: to_number
-- expect: > 1.03
SELECT count(to_number(s, '999G999D99')) FROM numbers;
-- name: to_char of a float8
-- expect: > 1
SELECT count(to_char(f, '999G999D99')) FROM numbers;
-- name: float8 as text
-- control
SELECT count(f::text) FROM numbers;
