-- name: grant
-- expect: < 0.96
GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC;
-- name: revoke
-- expect: < 0.96
REVOKE SELECT ON ALL TABLES IN SCHEMA public FROM PUBLIC;
-- name: classes
-- control
SELECT count(*) FROM pg_class;
