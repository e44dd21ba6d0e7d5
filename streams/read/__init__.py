"""Reading with Spark: views, the data source, and streams of changes."""
