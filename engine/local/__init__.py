"""Workers as threads or processes of this machine. Launchers only: they know how to start and end a worker and nothing of what it does."""
