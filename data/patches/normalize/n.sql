-- name: NFC
-- expect: < 0.82
SELECT count(normalize(v, NFC)) FROM words;
-- name: NFD
-- expect: < 0.77
SELECT count(normalize(v, NFD)) FROM words;
-- name: lower
-- control
SELECT count(md5(v)) FROM words;
