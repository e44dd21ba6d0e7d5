-- Tables and namespaces: CREATE, SHOW CREATE TABLE, ALTER, DROP.
CREATE NAMESPACE weft.shop;
CREATE NAMESPACE weft.shop;
--! SCHEMA_ALREADY_EXISTS
CREATE NAMESPACE IF NOT EXISTS weft.shop;

CREATE TABLE weft.shop.orders_wide (
    order_id BIGINT NOT NULL, region STRING,
    status STRING DEFAULT 'it''s new', order_ts TIMESTAMP, note STRUCT<text: STRING, tags: ARRAY<STRING>>,
    clicks BIGINT, page STRING, click_ts BIGINT,
    paid DECIMAL(12,2) DEFAULT 0 COMMENT 'in EUR, it''s net', pay_ts INT)
USING weft PARTITIONED BY (region) COMMENT 'orders; "wide"'
TBLPROPERTIES (
    'key' = 'region, order_id', 'buckets' = '2',
    'group.order' = 'status, order_ts, note', 'group.order.ordering' = 'order_ts',
    'group.click' = 'clicks, page, click_ts', 'group.click.ordering' = 'click_ts', 'group.click.merge' = 'aggregate',
    'group.click.function.clicks' = 'sum',
    'group.click.function.page' = 'listagg', 'group.click.function.page.delimiter' = ', ',
    'group.payment' = 'paid, pay_ts', 'group.payment.ordering' = 'pay_ts', 'group.payment.merge' = 'latest_non_null',
    'stream.orders' = 'order', 'stream.orders.on_delete' = 'row', 'stream.payments' = 'payment',
    'stream.clicks' = 'click', 'stream.clicks.on_delete' = 'ignore', 'ttl.rows' = '90 days');
CREATE TABLE IF NOT EXISTS weft.shop.orders_wide (order_id BIGINT);
CREATE TABLE weft.shop.orders_wide (order_id BIGINT) TBLPROPERTIES ('key' = 'order_id');
--! TABLE_OR_VIEW_ALREADY_EXISTS

-- What the statement lacks or has too much is refused, and nothing is created.
CREATE TABLE weft.shop.bad (id BIGINT, v STRING) USING weft;
--! InvalidInput: property 'key' is missing
CREATE TABLE weft.shop.bad (id BIGINT, v STRING) TBLPROPERTIES ('key' = 'id', 'group.g' = 'v,w', 'stream.s' = 'g');
--! InvalidInput: property group.g: there is no 'w'
CREATE TABLE weft.shop.bad (id BIGINT, v STRING) TBLPROPERTIES ('key' = 'id', 'grup.g' = 'v');
--! did you mean
CREATE TABLE weft.shop.bad (id BIGINT, v VARCHAR(10)) TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g');
--! InvalidInput: column 'v': a table cannot have the type VARCHAR(10)
CREATE TABLE weft.shop.bad (id BIGINT, v VARIANT) TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g');
--! hint: use STRING for JSON, and parse_json in queries; or a STRUCT of the fields
CREATE TABLE weft.shop.bad (id STRING COLLATE UTF8_LCASE, v INT) TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g');
--! hint: leave COLLATE out, and use it in queries
CREATE TABLE weft.shop.bad (id BIGINT, v INT NOT NULL) TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g');
--! InvalidInput: column 'v': NOT NULL
CREATE TABLE weft.shop.bad (id BIGINT, v INT) USING parquet;
--! InvalidInput: USING parquet: this catalog has weft tables only
CREATE TABLE weft.shop.bad (id BIGINT, v INT) LOCATION '/elsewhere' TBLPROPERTIES ('key' = 'id');
--! InvalidInput: CREATE TABLE: a table cannot have LOCATION
CREATE TABLE weft.shop.bad (id BIGINT, v INT) PARTITIONED BY (bucket(4, id)) TBLPROPERTIES ('key' = 'id');
--! 'buckets' = '8'
CREATE TABLE weft.shop.bad (id BIGINT, v DATE) PARTITIONED BY (days(v)) TBLPROPERTIES ('key' = 'id');
--! InvalidInput: PARTITIONED BY (days(v)): only columns of the key
CREATE TABLE weft.shop.bad (id BIGINT, v INT) CLUSTER BY (id) TBLPROPERTIES ('key' = 'id');
--! InvalidInput: CREATE TABLE: a table has no clustering (CLUSTER BY)
CREATE TABLE weft.shop.bad (id BIGINT, v INT) CLUSTERED BY (id) INTO 4 BUCKETS TBLPROPERTIES ('key' = 'id');
--! InvalidInput: CREATE TABLE: bucket(4, id): a table is divided into buckets by its key
CREATE TABLE weft.shop.bad (id BIGINT, v INT) STORED AS ORC TBLPROPERTIES ('key' = 'id');
--! InvalidInput: CREATE TABLE: a table cannot have STORED AS and ROW FORMAT
CREATE TABLE weft.shop.bad (id BIGINT, v INT) OPTIONS ('key' = 'id', 'nope' = '1');
--! InvalidInput: property 'nope' is unknown
CREATE TABLE weft.shop.bad (id BIGINT, v STRING) DEFAULT COLLATION UTF8_LCASE TBLPROPERTIES ('key' = 'id');
--! InvalidInput: CREATE TABLE: a table cannot have DEFAULT COLLATION
CREATE EXTERNAL TABLE weft.shop.bad (id BIGINT, v INT) TBLPROPERTIES ('key' = 'id');
--! InvalidInput: CREATE TABLE: a table cannot have EXTERNAL
CREATE TABLE weft.shop.bad (id BIGINT PRIMARY KEY, v INT) TBLPROPERTIES ('key' = 'id');
--! does not support table constraint
CREATE TABLE weft.shop.bad (id BIGINT, v BIGINT GENERATED ALWAYS AS (id + 1)) TBLPROPERTIES ('key' = 'id');
--! does not support generated columns
CREATE TABLE weft.shop.bad TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'group.h' = 'w', 'stream.s' = 'g', 'stream.t' = 'h')
    AS SELECT 1L AS id, 2 AS v, 3 AS w;
--! AS SELECT: the table has several streams
CREATE VIEW weft.shop.bad AS SELECT 1 AS id;
--! Catalog weft does not support views
SHOW TABLES IN weft.shop;
--> shop | orders_wide | false

-- Changes: a column joins the group of the column that it follows.
ALTER TABLE weft.shop.orders_wide ADD COLUMNS (tip DOUBLE COMMENT 'for the driver' AFTER paid, channel STRING DEFAULT 'web' AFTER status);
ALTER TABLE weft.shop.orders_wide ADD COLUMN tip2 DOUBLE;
--! AFTER paid for group payment
ALTER TABLE weft.shop.orders_wide ADD COLUMN tip2 DOUBLE FIRST;
--! InvalidInput: ADD COLUMN tip2 FIRST
ALTER TABLE weft.shop.orders_wide ALTER COLUMN pay_ts TYPE BIGINT;
ALTER TABLE weft.shop.orders_wide ALTER COLUMN paid DROP DEFAULT;
ALTER TABLE weft.shop.orders_wide ALTER COLUMN page SET DEFAULT 'none';
ALTER TABLE weft.shop.orders_wide ALTER COLUMN page COMMENT 'pages\nseen';
ALTER TABLE weft.shop.orders_wide ALTER COLUMN nope COMMENT 'text';
--! UNRESOLVED_COLUMN
DESCRIBE weft.shop.orders_wide tip;
--> col_name | tip
--> data_type | double
--> comment | for the driver
COMMENT ON TABLE weft.shop.orders_wide IS NULL;
COMMENT ON TABLE weft.shop.orders_wide IS 'it''s "wide"';
ALTER TABLE weft.shop.orders_wide SET TBLPROPERTIES ('stream.fixes' = 'payment', 'stream.fixes.on_delete' = 'ignore');
ALTER TABLE weft.shop.orders_wide SET TBLPROPERTIES ('group.order.merge' = 'latest_non_null');
--! InvalidInput: properties of group 'order' cannot be changed
ALTER TABLE weft.shop.orders_wide UNSET TBLPROPERTIES ('ttl');
ALTER TABLE weft.shop.orders_wide RENAME COLUMN tip TO gratuity;
--! InvalidInput: ALTER TABLE: a column cannot be renamed
ALTER TABLE weft.shop.orders_wide DROP COLUMN tip;
--! InvalidInput: ALTER TABLE: a column cannot be dropped
ALTER TABLE weft.shop.orders_wide RENAME TO weft.shop.orders;
--! InvalidInput: shop.orders_wide cannot be renamed
ALTER TABLE weft.shop.orders_wide ADD COLUMN n STRING NOT NULL AFTER paid;
--! NOT NULL

ALTER TABLE weft.shop.orders_wide ADD CONSTRAINT positive CHECK (paid > 0);
--! InvalidInput: ALTER TABLE weft.shop.orders_wide: a table has no constraints
ALTER TABLE weft.shop.orders_wide ADD CONSTRAINT pk PRIMARY KEY (order_id);
--! does not support table constraint
ALTER TABLE weft.shop.orders_wide SET LOCATION '/elsewhere';
--! InvalidInput: ALTER TABLE: a table cannot have LOCATION
ALTER TABLE weft.shop.orders_wide CLUSTER BY (order_id);
--! InvalidInput: ALTER TABLE: a table has no clustering
ALTER TABLE weft.shop.orders_wide ADD PARTITION (region = 'eu');
--! does not support partition management
ANALYZE TABLE weft.shop.orders_wide COMPUTE STATISTICS;
--! ANALYZE TABLE is not supported for v2 tables
TRUNCATE TABLE weft.shop.orders_wide;
--! InvalidInput: TRUNCATE TABLE weft.shop.orders_wide: a statement cannot delete all rows of a table at once
SHOW PARTITIONS weft.shop.orders_wide;
--! does not support partition management

-- The statement that SHOW CREATE TABLE prints creates the same table; so does LIKE.
CREATE TABLE weft.shop.copy LIKE weft.shop.orders_wide TBLPROPERTIES ('buckets' = '4', 'comment' = 'a copy');
SELECT * FROM weft.shop.copy;
SHOW TBLPROPERTIES weft.shop.copy ('buckets');
--> buckets | 4
SHOW TBLPROPERTIES weft.shop.copy ('group.click.function.page');
--> group.click.function.page | listagg
DESCRIBE weft.shop.copy tip;
--> col_name | tip
--> data_type | double
--> comment | for the driver
CREATE OR REPLACE TABLE weft.shop.copy (id BIGINT, v INT) OPTIONS ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g');
CREATE OR REPLACE TABLE weft.shop.copy (id BIGINT, v INT) TBLPROPERTIES ('key' = 'nope');
--! InvalidInput:
SHOW COLUMNS IN weft.shop.copy;
--> id
--> v
CREATE OR REPLACE TABLE weft.shop.copy TBLPROPERTIES ('key' = 'id', 'group.g' = 'w', 'stream.s' = 'g')
    AS SELECT CAST(NULL AS BIGINT) AS id, 1 AS w;
--! column 'id': NULL in a key column
SHOW TABLES IN weft.shop LIKE 'copy';
CREATE OR REPLACE TABLE weft.shop.copy TBLPROPERTIES ('key' = 'id', 'group.g' = 'w', 'stream.s' = 'g')
    AS SELECT 1L AS id, 2 AS w;
SELECT * FROM weft.shop.copy;
--> 1 | 2
DROP TABLE weft.shop.copy PURGE;
SHOW CREATE TABLE weft.shop.orders_wide;
--= created
SHOW TBLPROPERTIES weft.shop.orders_wide;
--= properties
DESCRIBE EXTENDED weft.shop.orders_wide;
--= described
DROP TABLE weft.shop.orders_wide;
{created};
SHOW CREATE TABLE weft.shop.orders_wide;
--= created
SHOW TBLPROPERTIES weft.shop.orders_wide;
--= properties
DESCRIBE EXTENDED weft.shop.orders_wide;
--= described

-- A table that somebody has written to is dropped only with PURGE.
INSERT INTO weft.shop.orders_wide.payments (order_id, region, paid, tip, pay_ts) VALUES (1, 'eu', 9.5, 1, 7);
DROP TABLE weft.shop.orders_wide;
--! use DROP TABLE ... PURGE
CREATE OR REPLACE TABLE weft.shop.orders_wide (id BIGINT, v INT)
    TBLPROPERTIES ('key' = 'id', 'group.g' = 'v', 'stream.s' = 'g');
--! InvalidInput: REPLACE TABLE weft.shop.orders_wide: this would delete all of its data and history
DROP NAMESPACE weft.shop;
--! SCHEMA_NOT_EMPTY
DROP NAMESPACE weft.shop CASCADE;
--! InvalidInput: DROP NAMESPACE shop CASCADE: it is not empty
DROP TABLE weft.shop.orders_wide.payments PURGE;
--! it is a part of a table
DROP TABLE weft.shop.orders_wide PURGE;
DROP TABLE IF EXISTS weft.shop.orders_wide PURGE;
DROP TABLE weft.shop.orders_wide PURGE;
--! TABLE_OR_VIEW_NOT_FOUND
DROP NAMESPACE weft.shop;
SHOW NAMESPACES IN weft;
