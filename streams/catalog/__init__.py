"""A folder of tables as a catalog of Spark SQL: `weft.shop.orders_wide`.

Start reading at `register`.

    register        register_catalog, and the settings spark.weft.catalog.<name>
    lake            the folder: which names are tables, and where they are
    lake_catalog    the object that Spark calls; it dispatches to the modules below
    relations       what a query reads: a table, a state of the past, changes, system tables
    table_entry     what commands such as DESCRIBE show of a table
    definitions     CREATE, ALTER, DROP; what ALTER changes is in table_changes
    writing         INSERT, writeTo, DELETE; what they mean is in stream_writes
    stream_to_table writeStream.toTable
    procedures      CALL; procedure_table lists the procedures
    catalog_jvm     the JVM classes of all this
"""
