"""One run of a job: start, restore, launch, the handle, rescaling.

The session composes the other rooms and adds no protocol.
"""
