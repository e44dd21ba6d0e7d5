-- Procedures: named and positional arguments, defaults, results as rows, and refused calls.
CREATE TABLE weft.shop.orders_wide (order_id BIGINT, status STRING, order_ts BIGINT)
TBLPROPERTIES (
    'key' = 'order_id', 'buckets' = '1', 'group.order' = 'status,order_ts', 'group.order.ordering' = 'order_ts',
    'stream.orders' = 'order');
INSERT INTO weft.shop.orders_wide VALUES (1, 'new', 10), (2, 'new', 10);
CALL weft.system.savepoint('shop.orders_wide', 'before', note => 'it''s a release');
--= savepoint
INSERT INTO weft.shop.orders_wide VALUES (1, 'wrong', 20);
CALL weft.system.verify(table => 'weft.shop.orders_wide', deep => false);
--= verified
CALL weft.system.restore(table => 'shop.orders_wide', to => 'before');
--! add confirm => true
SELECT status FROM weft.shop.orders_wide WHERE order_id = 1;
--> wrong
CALL weft.system.restore(table => 'shop.orders_wide', to => 'before', confirm => true);
--= restored
SELECT status FROM weft.shop.orders_wide WHERE order_id = 1;
--> new
CALL weft.system.release('shop.orders_wide', name => 'before');
--> before
CALL weft.system.add_group(
    'shop.orders_wide', 'tip', map('tip', 'double', 'tip_ts', 'bigint'), ordering => 'tip_ts', streams => 'tips');
--= added
INSERT INTO weft.shop.orders_wide.tips VALUES (2, 0.5, 1);
SELECT * FROM weft.shop.orders_wide ORDER BY order_id;
--> 1 | new | 10 | NULL | NULL
--> 2 | new | 10 | 0.5 | 1
CALL weft.system.rewrite('shop.orders_wide', 'status', 'upper(status)', confirm => true);
--= rewritten
SELECT DISTINCT status FROM weft.shop.orders_wide;
--> NEW
CALL weft.system.erase('shop.orders_wide', keys => 'SELECT 2 AS order_id');
--! Erase 1 key from shop.orders_wide? This cannot be undone. It is not confirmed
CALL weft.system.erase('shop.orders_wide', keys => 'SELECT 2 AS id');
--! InvalidInput: keys:
CALL weft.system.erase('shop.orders_wide', 'SELECT 2 AS order_id', expire_snapshots => true, confirm => true);
--= erased
SELECT * FROM weft.shop.orders_wide;
--> 1 | NEW | 10 | NULL | NULL
CALL weft.system.explain_row(table => 'shop.orders_wide', key => 3);
--! NotFound: the table has neither a row nor a delete with key order_id=3

CALL weft.system.clean(table => 'shop.orders_wide', retain => 'soon');
--! InvalidInput: retain: 'soon' is not a duration
CALL weft.system.clean(table => 'shop.orders_wide', retian => '1 day');
--! UNRECOGNIZED_PARAMETER_NAME
CALL weft.system.clean();
--! REQUIRED_PARAMETER_NOT_FOUND
CALL weft.system.compact(table => 'shop.nothing');
--! NotFound: there is no table weft.shop.nothing
CALL weft.system.verify('nowhere.nothing');
--! hint: list the tables with SHOW NAMESPACES IN weft and SHOW TABLES IN a namespace
CALL weft.system.compact(table => 'shop.orders_wide.orders');
--! hint: name the table: weft.shop.orders_wide
CALL weft.system.compact(table => 'shop orders');
--! InvalidInput: 'shop orders' is not a name
CALL weft.system.compakt(table => 'shop.orders_wide');
--! NotFound: there is no procedure 'compakt'
CALL weft.shop.compact(table => 'shop.orders_wide');
--! procedures are in weft.system
