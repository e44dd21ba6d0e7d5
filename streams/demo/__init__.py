"""``weft demo``, and the embedded Kafka broker that it shares with the tests."""
