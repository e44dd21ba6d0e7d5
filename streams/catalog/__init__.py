"""A folder of tables as a catalog of Spark SQL: `weft.shop.orders_wide`.

Start reading at `register`.

    register        register_catalog, and the settings spark.weft.catalog.<name>
    lake            the folder: which names are tables, and where they are
    lake_catalog    the object that Spark calls; it calls the modules below
    relations       reads of a query: a table, an earlier state, changes, system tables
    table_entry     descriptions of tables for commands such as DESCRIBE
    definitions     CREATE, ALTER, DROP; table_changes defines what ALTER changes
    writing         INSERT, writeTo, DELETE; stream_writes defines what they mean
    stream_to_table writeStream.toTable
    procedures      CALL; procedure_table lists the procedures
    catalog_jvm     the JVM classes that these modules use
"""
