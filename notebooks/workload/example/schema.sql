CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text NOT NULL);
INSERT INTO customers SELECT i, 'customer ' || i, 'city ' || i % 50 FROM generate_series(1, 2000) i;

CREATE TABLE orders (
    id int PRIMARY KEY,
    customer int NOT NULL REFERENCES customers,
    placed date NOT NULL,
    cents int NOT NULL
);
INSERT INTO orders
SELECT i, 1 + i * 7919 % 2000, date '2026-01-01' + i % 300, i * 131 % 10000 FROM generate_series(1, 20000) i;
CREATE INDEX ON orders (customer);

CREATE TABLE stock (item int PRIMARY KEY, pieces int NOT NULL);
INSERT INTO stock SELECT i, 100 FROM generate_series(1, 1000) i;
