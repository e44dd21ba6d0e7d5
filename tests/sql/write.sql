-- INSERT names a stream; DELETE deletes what the table shows; UPDATE and MERGE are refused.
CREATE TABLE weft.shop.orders_wide (
    order_id BIGINT, status STRING, order_ts BIGINT, paid DECIMAL(12,2), pay_ts TIMESTAMP)
TBLPROPERTIES (
    'key' = 'order_id', 'group.order' = 'status,order_ts', 'group.order.ordering' = 'order_ts',
    'group.payment' = 'paid,pay_ts', 'group.payment.ordering' = 'pay_ts',
    'stream.orders' = 'order', 'stream.orders.on_delete' = 'row', 'stream.payments' = 'payment');

INSERT INTO weft.shop.orders_wide.orders VALUES (1, 'new', 10), (2, 'new', 11), (3, 'new', 12);
INSERT INTO weft.shop.orders_wide.payments (pay_ts, order_id, paid) SELECT timestamp '2026-01-01 00:00:00', 1, 9.5;
INSERT INTO weft.shop.orders_wide.orders BY NAME SELECT 20 AS order_ts, 'sent' AS status, 2 AS order_id;
INSERT INTO weft.shop.orders_wide.orders (order_id, order_ts, status) VALUES (3, 5, 'older, so it loses');
SELECT order_id, status, order_ts, paid, string(pay_ts) FROM weft.shop.orders_wide ORDER BY order_id;
--> 1 | new | 10 | 9.50 | 2026-01-01 00:00:00
--> 2 | sent | 20 | NULL | NULL
--> 3 | new | 12 | NULL | NULL

-- A batch that is sent again is stored once.
INSERT INTO weft.shop.orders_wide.orders WITH ('query_id' = 'load', 'batch' = '1') (order_id, status, order_ts)
    VALUES (4, 'first', 1);
INSERT INTO weft.shop.orders_wide.orders WITH ('query_id' = 'load', 'batch' = '1') (order_id, status, order_ts)
    VALUES (4, 'again', 2);
-- A delete as an event, with an ordering value of its own: later events with smaller ones lose.
INSERT INTO weft.shop.orders_wide.orders (order_id, status, order_ts, _op) VALUES (2, NULL, 30, 'delete');
INSERT INTO weft.shop.orders_wide.orders VALUES (2, 'late', 25);
SELECT order_id, status FROM weft.shop.orders_wide ORDER BY order_id;
--> 1 | new
--> 3 | new
--> 4 | first

-- DELETE has the ordering values of the rows that it deletes.
DELETE FROM weft.shop.orders_wide.payments WHERE order_id = 1;
DELETE FROM weft.shop.orders_wide.orders WHERE order_id IN (3, 4) AND status LIKE 'ne%';
SELECT * FROM weft.shop.orders_wide ORDER BY order_id;
--> 1 | new | 10 | NULL | NULL
--> 4 | first | 1 | NULL | NULL

-- DEFAULT is the column's default; a later change of it does not change the row.
CREATE TABLE weft.shop.defaults (id BIGINT, s STRING DEFAULT 'it''s \\new', d DATE DEFAULT date'2024-01-01',
    t TIMESTAMP DEFAULT timestamp'2024-01-01 00:00:00.123456', n TIMESTAMP_NTZ DEFAULT timestamp_ntz'2024-01-01 01:02:03',
    b BINARY DEFAULT X'00FF', g DOUBLE DEFAULT double('-Infinity'), m DECIMAL(10,2) DEFAULT 1.50, o BOOLEAN DEFAULT true,
    i TINYINT DEFAULT -1, no INT, total BIGINT DEFAULT 7, part STRING DEFAULT 'p')
    TBLPROPERTIES ('key' = 'id', 'group.g' = 's,d,t,n,b,g,m,o,i,no', 'group.sum' = 'total', 'group.sum.merge' = 'aggregate',
    'group.sum.function.total' = 'sum', 'group.part' = 'part', 'group.part.merge' = 'latest_non_null', 'stream.s' = 'g,sum,part');
INSERT INTO weft.shop.defaults VALUES
    (1, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, default, DEFAULT, DEFAULT, DEFAULT),
    (2, 'x', DEFAULT, NULL, DEFAULT, DEFAULT, 1, DEFAULT, DEFAULT, 2, 3, 4, 'q');
INSERT INTO weft.shop.defaults (total, id) VALUES (DEFAULT, 1), (DEFAULT, 3);
ALTER TABLE weft.shop.defaults ALTER COLUMN s SET DEFAULT 'newer';
SELECT id, s, d, string(t), string(n), hex(b), g, m, o, i, no, total, part FROM weft.shop.defaults ORDER BY id;
--> 1 | it's \new | 2024-01-01 | 2024-01-01 00:00:00.123456 | 2024-01-01 01:02:03 | 00FF | -inf | 1.50 | true | -1 | NULL | 14 | p
--> 2 | x | 2024-01-01 | NULL | 2024-01-01 01:02:03 | 00FF | 1.0 | 1.50 | true | 2 | 3 | 4 | q
--> 3 | newer | 2024-01-01 | 2024-01-01 00:00:00.123456 | 2024-01-01 01:02:03 | 00FF | -inf | 1.50 | true | -1 | NULL | 7 | p
INSERT INTO weft.shop.defaults (id, total) VALUES (DEFAULT, 1);
--! NO_DEFAULT_COLUMN_VALUE_AVAILABLE

-- By position names do not matter: not even equal ones.
INSERT INTO weft.shop.orders_wide.orders SELECT 4L, 'x', 0L AS x;
INSERT INTO weft.shop.orders_wide.orders SELECT 5L, 'x', 5L;
INSERT INTO IDENTIFIER('weft.shop.' || 'orders_wide.orders') SELECT status, status, status FROM VALUES (6L) AS t(status);
INSERT INTO IDENTIFIER('weft.shop.' || 'orders_wide.orders') (order_ts, order_id, status) VALUES (7, 6, 'seven');
-- Words of a query are names in a list of columns.
CREATE TABLE weft.shop.words (from BIGINT, values BIGINT, table BIGINT)
    TBLPROPERTIES ('key' = 'from', 'group.g' = 'values,table', 'stream.s' = 'g');
INSERT INTO weft.shop.words (table, values, from) VALUES (3, 2, 1);
SELECT from, values, table FROM weft.shop.words;
--> 1 | 2 | 3
SELECT order_id, status, order_ts FROM weft.shop.orders_wide WHERE order_id > 4 ORDER BY order_id;
--> 5 | x | 5
--> 6 | seven | 7
DELETE FROM weft.shop.orders_wide.orders WHERE order_id > 4;

-- Bad statements change nothing.
INSERT INTO weft.shop.orders_wide.orders BY NAME SELECT 9L AS order_id, 'x' AS status, 1L AS order_ts, 2L AS ORDER_TS;
--! the query has column 'order_ts' twice
INSERT INTO weft.shop.orders_wide VALUES (9, 'x', 1);
--! write to weft.shop.orders_wide.orders, weft.shop.orders_wide.payments
INSERT INTO weft.shop.orders_wide.order VALUES (9, 'x', 1);
--! NotFound: weft.shop.orders_wide has no stream 'order'
INSERT INTO weft.shop.orders_wide.orders VALUES (9, 'x');
--! the query has 2 columns, and stream 'orders' 3: order_id, status, order_ts
INSERT INTO weft.shop.orders_wide.orders (order_id, paid) VALUES (9, 1);
--! paid
INSERT INTO weft.shop.orders_wide.orders (order_id, status) VALUES (9, 'x');
--! order_ts
INSERT INTO weft.shop.orders_wide.orders (order_id, status, order_ts) VALUES ('9', 'x', 1);
--! InvalidInput: column 'order_id' is bigint, not string
INSERT INTO weft.shop.orders_wide.orders (order_id, status, order_ts) VALUES (NULL, 'x', 1);
--! column 'order_id': NULL in a key column
INSERT INTO weft.shop.orders_wide.orders (order_id, status, order_ts) VALUES (NULL, 'x', 1);
--! hint: set the key in every event; or leave such rows out with WHERE
DELETE FROM weft.shop.orders_wide.orders WHERE order_id IN (SELECT 1);
--! InvalidInput: DELETE of weft.shop.orders_wide.orders: the condition has a subquery
DELETE FROM weft.shop.orders_wide.orders WHERE EXISTS (SELECT 1);
--! hint: use INSERT INTO weft.shop.orders_wide.orders BY NAME SELECT `order_id`, `status`, `order_ts`, 'delete' AS _op FROM weft.shop.orders_wide AS orders WHERE EXISTS (SELECT 1)
DELETE FROM weft.shop.orders_wide.orders WHERE status = 'not a (SELECT 1)';
INSERT INTO weft.shop.orders_wide.orders WITH ('batch' = '1') VALUES (9, 'x', 1);
--! options query_id and batch
INSERT OVERWRITE weft.shop.orders_wide.orders VALUES (9, 'x', 1);
--! InvalidInput: INSERT OVERWRITE
UPDATE weft.shop.orders_wide.orders SET status = 'x' WHERE order_id = 1;
--! InvalidInput: UPDATE of weft.shop.orders_wide.orders: an update needs an ordering value
MERGE INTO weft.shop.orders_wide.orders AS t USING (SELECT 1 AS id) AS s ON t.order_id = s.id WHEN MATCHED THEN DELETE;
--! InvalidInput: MERGE of weft.shop.orders_wide.orders
UPDATE weft.shop.orders_wide SET status = 'x' WHERE order_id = 1;
--! hint: use INSERT INTO weft.shop.orders_wide.<stream> (...) SELECT
DELETE FROM weft.shop.orders_wide.orders WHERE length(status) = 3;
--! status
DELETE FROM weft.shop.orders_wide.orders;
--! hint: to delete all rows, add WHERE order_id IS NOT NULL
SELECT count(*), max(order_ts) FROM weft.shop.orders_wide;
--> 2 | 10

-- A table with one stream needs no name of it, so CREATE TABLE AS SELECT works.
CREATE TABLE weft.shop.totals TBLPROPERTIES ('key' = 'id', 'group.g' = 'n', 'stream.s' = 'g')
    AS SELECT order_ts + 1 AS n, order_id AS id FROM weft.shop.orders_wide;
INSERT INTO weft.shop.totals VALUES (50, 5);
SELECT * FROM weft.shop.totals ORDER BY id;
--> 11 | 1
--> 2 | 4
--> 50 | 5
