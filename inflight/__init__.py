"""What a checkpoint writes beside its metadata: the segment file, and tables as checked bytes in it. Pure: the writing is done by `headrace.engine`."""
