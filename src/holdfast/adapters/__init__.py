"""holdfast inside the trainers people already run. One module a host; the host is imported nowhere else."""
