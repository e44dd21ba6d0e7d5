-- Time travel and changes. The savepoint 'first' has the orders 1 to 3 without payments.
SELECT * FROM weft.shop.orders_wide VERSION AS OF 'first' ORDER BY order_id;
SELECT count(*) FROM weft.shop.orders_wide FOR VERSION AS OF 'cut:1:3:orders=2,payments=1';
SELECT count(*) FROM weft.shop.orders_wide TIMESTAMP AS OF '2100-01-01';
SELECT n.order_id, n.status, o.status FROM weft.shop.orders_wide n JOIN weft.shop.orders_wide VERSION AS OF 'first' o USING (order_id) WHERE n.status <> o.status;
SELECT order_id, customer_name FROM weft.shop.orders_with_customers VERSION AS OF 'before_rename' ORDER BY order_id;
SELECT order_id, status, paid, _change, _changed_groups FROM weft_changes('weft.shop.orders_wide', 'first') ORDER BY order_id;
SELECT order_id, _change FROM weft_changes('weft.shop.orders_wide', 'earliest', 'first') ORDER BY order_id;
SELECT count(*) FROM weft_changes('weft.shop.orders_wide', 'first', 'first');
SELECT order_id, status, paid, _change_type, _commit_version, _commit_timestamp FROM weft.shop.orders_wide CHANGES FROM VERSION 'first' EXCLUSIVE ORDER BY order_id, _change_type DESC;
SELECT order_id, _change_type FROM weft.shop.orders_wide CHANGES FROM VERSION 'earliest' TO VERSION 'first' ORDER BY order_id;
SELECT count(*) FROM weft.shop.orders_wide CHANGES FROM VERSION 'first' EXCLUSIVE TO VERSION 'first';
SELECT sum(paid), count(*) FROM weft.shop.orders_wide CHANGES FROM TIMESTAMP '2001-01-01' WHERE _change_type = 'insert';
SELECT order_id, _change_type FROM weft.shop.orders_wide CHANGES FROM VERSION 'first' EXCLUSIVE WITH ('computeUpdates' = 'true', 'deduplicationMode' = 'netChanges') WHERE order_id = 1;
SELECT order_id, customer_name, _change_type FROM weft.shop.orders_with_customers CHANGES FROM VERSION 'before_rename' EXCLUSIVE ORDER BY _change_type DESC;
USE weft.shop;
SELECT count(*) FROM weft_changes('orders_wide', 'first') c JOIN orders_wide t ON c.order_id = t.order_id;
USE spark_catalog.default;
