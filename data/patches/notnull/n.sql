-- name: indexed column
-- expect: < 0.5
BEGIN; ALTER TABLE rows ALTER a SET NOT NULL; ROLLBACK;
-- name: other column
-- control
BEGIN; ALTER TABLE rows ALTER b SET NOT NULL; ROLLBACK;
