"""Streams: what a user composes a job of.

The room describes and checks a pipeline, and runs nothing.
"""
