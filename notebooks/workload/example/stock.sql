\set item random(1, 1000)
INSERT INTO stock VALUES (:item, 1) ON CONFLICT (item) DO UPDATE SET pieces = stock.pieces + 1;
