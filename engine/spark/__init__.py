"""Workers as tasks of one long Spark job, and the session that carries them.

Records never pass through Spark.
"""
