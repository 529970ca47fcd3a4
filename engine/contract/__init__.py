"""Protocols and plain values on which all rooms of the engine agree: errors, options, operators,
plan, messages. No behaviour.
"""
