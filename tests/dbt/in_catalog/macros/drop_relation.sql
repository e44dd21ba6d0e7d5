{# A table model drops its table in each run, and weft drops a table with rows only with PURGE. #}
{% macro spark__drop_relation(relation) -%}
  {% call statement("drop_relation", auto_begin=False) -%}
    drop {{ relation.type }} if exists {{ relation }}{% if relation.type != "view" %} purge{% endif %}
  {%- endcall %}
{% endmacro %}
