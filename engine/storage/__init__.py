"""Checkpoint storage, and the files of a checkpoint: snapshots, databases, the in-flight log.

Storage decides nothing about a job.
"""
