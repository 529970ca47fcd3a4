"""Workers as threads or processes of this machine. A launcher starts and ends workers, and knows
nothing of their work.
"""
