CREATE TABLE numbers AS SELECT i * 7.25::float8 AS f, to_char(i * 7.25, 'FM999G999D99') AS s FROM generate_series(1, 20000) AS i;
