-- name: orders of a customer
\set customer random(1, 2000)
SELECT o.id, o.placed, o.cents FROM orders o JOIN customers c ON c.id = o.customer WHERE c.id = :customer;

-- name: sales of a month by city
SELECT c.city, count(*), sum(o.cents) FROM orders o JOIN customers c ON c.id = o.customer
WHERE o.placed BETWEEN date '2026-03-01' AND date '2026-03-31' GROUP BY c.city ORDER BY 3 DESC;
