"""The Spark session that weft starts, and how its functions reach Spark's workers."""
