"""Looks at a running job: what its tasks, edges, checkpoints and sinks do now, and why the job is
slow. An observation is plain data that any process can read.
"""
