"""Every interleaving of small jobs, each state visited once, up to a crash."""
