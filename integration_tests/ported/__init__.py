"""Public example programs, each as a plain query and as a job: lines changed, equal output."""
