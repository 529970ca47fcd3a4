"""What happens in a worker: the pure machines of subtask and worker, and the threads, sockets and storage that drive them. No decision about the whole job."""
