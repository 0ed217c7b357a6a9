CREATE TABLE fact AS SELECT i AS id, (i * 7919::bigint) % 100000 AS d1, (i * 104729::bigint) % 100000 AS d2 FROM generate_series(1, 200000) AS i;
CREATE TABLE dim AS SELECT i AS id, i % 100 AS kind FROM generate_series(0, 99999) AS i;
