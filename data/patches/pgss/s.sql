-- name: lookup
-- control
\set aid random(1, 100000)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
-- name: update
-- control
\set aid random(1, 100000)
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
