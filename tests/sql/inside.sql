-- System tables, and metadata columns.
SELECT kind, lane, seq, rows FROM weft.shop.orders_wide.commits ORDER BY lane, seq;
SELECT lane, stream, head, rows, closed, writer FROM weft.shop.orders_wide.streams ORDER BY lane;
SELECT kind, rows, lane, seq, file_groups FROM weft.shop.orders_wide.files ORDER BY kind, lane, seq, rows;
SELECT file_group, base_rows, log_files, log_rows FROM weft.shop.orders_wide.slices ORDER BY 1;
SELECT name, cut FROM weft.shop.orders_wide.savepoints;
SELECT cut, kind, name, readable FROM weft.shop.orders_wide.snapshots;
SELECT * FROM weft.shop.orders_wide.watermarks ORDER BY stream;
DESCRIBE weft.shop.orders_wide.savepoints;
SELECT f.kind, c.committed_at IS NOT NULL FROM weft.shop.orders_wide.files f JOIN weft.shop.orders_wide.commits c USING (lane, seq) ORDER BY 1;
SELECT count(*) FROM weft.shop.orders_wide.files VERSION AS OF 'first';
SELECT sum(base_rows + log_rows) FROM weft.shop.orders_wide.slices CROSS JOIN (SELECT 1);
SELECT order_id, _present_order, _present_payment FROM weft.shop.orders_wide ORDER BY order_id;
SELECT *, _bucket FROM weft.shop.orders_wide WHERE _bucket = 0 ORDER BY order_id;
SELECT order_id, _arrival_payment IS NULL, _commit_time_payment BETWEEN TIMESTAMP '2020-01-01' AND TIMESTAMP '2100-01-01' FROM weft.shop.orders_wide ORDER BY order_id;
SELECT count(*) FROM weft.shop.orders_wide WHERE NOT _present_payment AND paid IS NULL AND status = 'new';
SELECT t.order_id FROM weft.shop.orders_wide t WHERE t._present_payment AND order_id = 1;
SELECT order_id, _present_payment FROM weft.shop.orders_wide VERSION AS OF 'first' ORDER BY order_id;
