{{ config(materialized="view") }}

SELECT * FROM {{ ref("orders_by_status") }} WHERE orders > 1
