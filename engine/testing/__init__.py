"""Conformance of sources and sinks: the steps of coordinator and workers, played by hand, with a
crash at each.
"""
