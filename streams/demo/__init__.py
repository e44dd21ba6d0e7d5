"""What ``weft demo`` and the tests bring along instead of a cluster: an embedded Kafka broker."""
