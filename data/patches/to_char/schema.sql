CREATE TABLE times AS SELECT timestamptz '2020-01-01 00:00:00+00' + i * interval '7919 s' AS t FROM generate_series(1, 20000) AS i;
