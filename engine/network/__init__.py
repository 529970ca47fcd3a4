"""Sockets of one process: authenticated connections, frames in and out, one network thread.

The room never looks into a frame.
"""
