{{ config(
    materialized="table",
    tblproperties={"key": "status", "group.g": "orders,newest", "stream.s": "g"}
) }}

SELECT status, count(*) AS orders, max(ots) AS newest
FROM {{ source("lake", "orders") }}
GROUP BY status
