"""Keyed state that a snapshot can read while work changes it.

Other rooms store and redistribute snapshots.
"""
