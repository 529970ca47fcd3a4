"""Spark's DataFrames and Python data sources, as sources and sinks."""
