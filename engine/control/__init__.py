"""Control of a running job from another process: where a job is found, requests and answers, and
who may send them.
"""
