"""Control of a running job from another process: where jobs can be found, what is said, and to whom."""
