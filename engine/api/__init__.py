"""What users write programs with: streams, jobs, options, errors, and the seam to connectors. It describes and checks a job; it runs nothing."""
