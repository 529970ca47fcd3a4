"""The content of checkpoints for people and other programs: directories, Arrow tables, Spark
DataFrames. Inspection changes no file.
"""
