"""Apache Kafka: a source of partitions, a sink of transactions, over one client and one codec."""
