"""Threads that step the machines of worker and coordinator, and perform the effects of their steps.

Drivers take no decision of a protocol.
"""
