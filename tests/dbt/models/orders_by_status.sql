{{ config(materialized="table", file_format="parquet") }}

SELECT status, count(*) AS orders, max(ots) AS newest
FROM {{ source("lake", "orders") }}
GROUP BY status
