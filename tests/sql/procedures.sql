-- Every procedure with arguments by position and by name, what it returns, and what it refuses.
CREATE TABLE weft.shop.orders_wide (order_id BIGINT, status STRING, order_ts TIMESTAMP, paid DOUBLE, pay_ts BIGINT)
TBLPROPERTIES (
    'key' = 'order_id', 'buckets' = '1', 'group.order' = 'status,order_ts', 'group.order.ordering' = 'order_ts',
    'group.payment' = 'paid,pay_ts', 'group.payment.ordering' = 'pay_ts', 'stream.orders' = 'order',
    'stream.orders.on_delete' = 'row', 'stream.payments' = 'payment', 'ttl.rows' = '7300 days', 'ttl.by' = 'order_ts');
INSERT INTO weft.shop.orders_wide.orders
    VALUES (1, 'new', TIMESTAMP '2026-01-01'), (2, 'new', TIMESTAMP '2026-01-02'), (3, 'old', TIMESTAMP '1999-01-01');
INSERT INTO weft.shop.orders_wide.payments WITH ('query_id' = 'load', 'batch' = '1') VALUES (1, 9.5, 7), (2, 1.0, 8);

-- Compaction and folds, in this process or with tasks of Spark.
CALL weft.system.fold('shop.orders_wide');
--~ fold \| 1 \| 3 \| \d+ \| \d+ \| [\d.]+ \| \{\}
CALL weft.system.fold(table => 'shop.orders_wide', on_cluster => true);
--~ fold \| 0 \| 0 \| 0 \| 0 \| [\d.]+ \| \{\}
CALL weft.system.compact(table => 'shop.orders_wide', min_commits => 1, on_cluster => true);
--~ compact \| 1 \| 3 \| \d+ \| \d+ \| [\d.]+ \| \{\}
--~ fold \| 0 \| 0 \| 0 \| 0 \| [\d.]+ \| \{\}
CALL weft.system.compact('weft.shop.orders_wide', 1, 0.5, 2, '1 hour', false);
--~ compact \| 0 \| .*
--~ fold \| 0 \| .*
CALL weft.system.compact('shop.orders_wide', min_commits => 0);
--! InvalidInput: min_commits:
CALL weft.system.compact('shop.orders_wide', max_age => 'soon');
--! 'soon' is not a duration
CALL weft.system.fold('shop.orders_wide', 'perhaps');
--! CAST_INVALID_INPUT
CALL weft.system.fold('shop.orders_wide', true, 1);
--! WRONG_NUM_ARGS

CALL weft.system.split('shop.orders_wide', 4);
--~ 4 \| 1 \| 4 \| \d+ \| \d+ \| \d+ \| [\d.]+
CALL weft.system.split(table => 'shop.orders_wide', buckets => 1, on_cluster => true);
--~ 1 \| 4 \| 1 \| \d+ \| \d+ \| \d+ \| [\d.]+
CALL weft.system.split('shop.orders_wide', 3);
--! buckets: 3 is not a power of two
CALL weft.system.verify('shop.orders_wide', false);
--~ ok \|  \| shop.orders_wide \| nothing is wrong: checked .* \|  \| cut:.*
CALL weft.system.verify(table => 'shop.orders_wide', deep => true, on_cluster => true);
--~ ok \|  \| shop.orders_wide \| nothing is wrong: checked .* \|  \| cut:.*
CALL weft.system.explain_row('shop.orders_wide', '1');
--~ order \| wins \| newest \| .*
--~ payment \| wins \| newest \| .*
CALL weft.system.explain_row(table => 'shop.orders_wide', key => '1', history => true);
--~ order \| wins \| newest \| .*
--~ payment \| wins \| newest \| .*
CALL weft.system.explain_row('shop.orders_wide', 'one');
--! 'one' is not a bigint
CALL weft.system.mark('shop.orders_wide');
--~ 20\d\d-.*

-- Time to live, expiry, forgotten deletes.
CALL weft.system.apply_ttl('shop.orders_wide');
--> 1 | 0 | 1 | 0
CALL weft.system.apply_ttl('shop.orders_wide', 1);
--! WRONG_NUM_ARGS
CALL weft.system.expire_rows('shop.orders_wide', 'order_ts', '2001-01-01T00:00:00Z');
--! Remove rows with order_ts before 2001-01-01T00:00:00Z from shop.orders_wide? This cannot be undone. It is not confirmed
CALL weft.system.expire_rows('shop.orders_wide', 'order_ts', '2001-01-01T00:00:00Z', 'too old', true);
--~ cut:.* \| 1 \| 0 \| 0 \| true
CALL weft.system.expire_rows(table => 'shop.orders_wide', column => 'nope', before => '1', confirm => true);
--! nope
CALL weft.system.forget_deletes('shop.orders_wide', 'order', '2020-01-01T00:00:00Z', confirm => true);
--~ cut:.* \| 1 \| 0 \| 0 \| true
CALL weft.system.forget_deletes(table => 'shop.orders_wide', group => 'nope', before => '1', confirm => true);
--! 'nope'

-- Savepoints, undo, restore.
CALL weft.system.savepoint('shop.orders_wide', 'before', NULL, 'a note');
--~ before \| cut:.* \| 20\d\d-.* \| a note
CALL weft.system.savepoint(table => 'shop.orders_wide', name => 'before');
--! before
INSERT INTO weft.shop.orders_wide.orders VALUES (4, 'wrong', TIMESTAMP '2026-01-04');
CALL weft.system.undo('shop.orders_wide', 'orders', 'before');
--! Undo orders since before in shop.orders_wide? Its writer is fenced. It is not confirmed
CALL weft.system.undo(table => 'shop.orders_wide', stream => 'nope', since => 'before', confirm => true);
--! 'nope'
CALL weft.system.undo(table => 'shop.orders_wide', stream => 'orders', since => 'before', confirm => true);
--= undone
SELECT order_id FROM weft.shop.orders_wide ORDER BY 1;
--> 1
--> 2
INSERT INTO weft.shop.orders_wide.orders VALUES (5, 'wrong', TIMESTAMP '2026-01-05');
CALL weft.system.restore('shop.orders_wide', 'nothing', true);
--! the table has no savepoint 'nothing'
CALL weft.system.restore('shop.orders_wide', 'before', true);
--= restored
SELECT order_id FROM weft.shop.orders_wide ORDER BY 1;
--> 1
--> 2
CALL weft.system.release('shop.orders_wide', 'before');
--> before
CALL weft.system.release(table => 'shop.orders_wide', name => 'before');
--! before

-- Lanes.
SELECT count(*) FROM weft.shop.orders_wide.streams WHERE NOT closed AND NOT finished;
--> 1
SELECT concat('CALL weft.system.fence(''shop.orders_wide'', ''', lane, ''', true)')
    FROM weft.shop.orders_wide.streams WHERE NOT closed AND NOT finished;
--= fence
{fence};
--~ payments-query-\w+ \| \d+
SELECT concat('CALL weft.system.close(table => ''shop.orders_wide'', lane => ''', lane, ''', confirm => true)')
    FROM weft.shop.orders_wide.streams WHERE NOT closed AND NOT finished;
--= close
{close};
--~ payments-query-\w+ \| \d+
{close};
--! closed
CALL weft.system.fence('shop.orders_wide', 'nope', true);
--! 'nope'
CALL weft.system.close('shop.orders_wide', 'nope');
--! the table has no lane 'nope'

-- Columns, groups, streams.
CALL weft.system.add_column('shop.orders_wide', 'payment', 'method', 'string', 'cash', NULL, 'as on the receipt');
--~ \d+ \| true
CALL weft.system.add_column(table => 'shop.orders_wide', group => 'payment', name => 'method', type => 'int');
--! method
DESCRIBE weft.shop.orders_wide method;
--> col_name | method
--> data_type | string
--> comment | as on the receipt
CALL weft.system.add_group('shop.orders_wide', 'tip', map('tip', 'double', 'tip_ts', 'bigint'), 'tip_ts', 'latest', NULL, 'tips');
--~ \d+ \| true
CALL weft.system.add_group(table => 'shop.orders_wide', name => 'visit',
    columns => map('visits', 'bigint'), merge => 'aggregate', functions => map('visits', 'sum'), streams => 'visits');
--~ \d+ \| true
CALL weft.system.add_group(table => 'shop.orders_wide', name => 'bad', columns => map('x', 'no type'), streams => 'tips');
--! no type
CALL weft.system.add_stream('shop.orders_wide', 'fixes', 'tip, payment', 'ignore');
--~ \d+ \| true
CALL weft.system.add_stream(table => 'shop.orders_wide', name => 'bad', groups => 'nope');
--! 'nope'

-- Values.
CALL weft.system.rewrite('shop.orders_wide', 'status', 'upper(status)', 'capitals', true);
--~ cut:.* \| 1 \| 2 \| 0 \| true
CALL weft.system.rewrite(table => 'shop.orders_wide', column => 'status', expression => 'nope(status)', confirm => true);
--! nope
CALL weft.system.rewrite(table => 'shop.orders_wide', column => 'status', expression => 'nope(status)');
--! nope
CALL weft.system.erase('shop.orders_wide', 'SELECT 2 AS order_id', true, false, 'asked for', true);
--= erased
CALL weft.system.erase(table => 'shop.orders_wide', keys => 'SELECT', confirm => true);
--! InvalidInput: keys:
SELECT order_id, status FROM weft.shop.orders_wide;
--> 1 | NEW

-- Other engines, and cleaning.
CALL weft.system.compact('shop.orders_wide');
--= compacted
CALL weft.system.publish('shop.orders_wide', 'shop.published', 'default', map('type', 'folder', 'warehouse', '{root}/_published'), 'order_id,status');
--~ shop.published \| cut:.* \| true \| 1 \| 1 \| 0 \| 1
CALL weft.system.publish(table => 'shop.orders_wide', delta => true);
--~ .*/base \| cut:.* \| true \| 1 \| 1 \| 0 \| 1
CALL weft.system.publish(table => 'shop.orders_wide', delta => true);
--~ .*/base \| cut:.* \| false \| .*
CALL weft.system.publish('shop.orders_wide', 'shop.published', delta => true);
--! publish: the format is missing
CALL weft.system.publish('shop.orders_wide', 'a.b', 'default', map('type', 'no such type'));
--! no such type
CALL weft.system.clean('shop.orders_wide', '0 seconds', NULL, '24 hours', true);
--= would_clean
CALL weft.system.clean(table => 'shop.orders_wide', retain => '0 seconds', dry_run => false);
--= cleaned
CALL weft.system.clean('shop.orders_wide', versions => 'many');
--! CAST_INVALID_INPUT
