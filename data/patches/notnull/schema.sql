CREATE TABLE rows AS SELECT i AS a, repeat('x', 100) AS b FROM generate_series(1, 100000) AS i;
CREATE INDEX ON rows (a);
