"""headrace: a stream-processing engine for Python whose checkpoints do not wait for backpressure."""
