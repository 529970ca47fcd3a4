"""Sources and sinks: files, generated records, memory. Their offsets and transactions are plain data that travels in checkpoints."""
