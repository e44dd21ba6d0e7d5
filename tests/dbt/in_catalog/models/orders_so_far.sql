{# Each run inserts: a row of an existing key is an update. #}
{{ config(
    materialized="incremental",
    incremental_strategy="append",
    tblproperties={"key": "status", "group.g": "orders,newest", "group.g.ordering": "newest", "stream.s": "g"}
) }}

SELECT status, count(*) AS orders, max(ots) AS newest
FROM {{ source("lake", "orders") }}
GROUP BY status
