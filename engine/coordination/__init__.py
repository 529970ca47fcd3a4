"""What happens beside the user's program: the coordinator machine and its driver, restores, commits, metrics. It never touches a record."""
