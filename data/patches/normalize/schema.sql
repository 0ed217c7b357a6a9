CREATE TABLE words AS SELECT string_agg(chr(192 + (i * 7 + j * 13) % 300), '') AS v FROM generate_series(1, 500) AS i, generate_series(1, 60) AS j GROUP BY i;
