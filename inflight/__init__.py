"""In-flight data and the files that hold it: handles, segments, what is stored already, what is to be replayed. Pure: reading and writing is done by `headrace.engine`."""
