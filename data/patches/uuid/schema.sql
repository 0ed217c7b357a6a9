CREATE TABLE texts AS SELECT gen_random_uuid()::text AS v FROM generate_series(1, 10000);
