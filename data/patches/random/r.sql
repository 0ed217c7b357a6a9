-- name: random UUIDs
-- expect: < 0.6
SELECT count(gen_random_uuid()) FROM generate_series(1, 2000);
-- name: hashes
-- control
SELECT count(md5(i::text)) FROM generate_series(1, 5000) AS i;
