CREATE TABLE facts AS SELECT i AS a, i % 100 AS b, i % 1000 AS c, i * 0.5::float8 AS d, 'text ' || i AS e FROM generate_series(1, 100000) AS i;
