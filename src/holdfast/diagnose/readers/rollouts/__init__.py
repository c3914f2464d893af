"""Rollouts that trainers wrote down, read from their files. docs/reference/logs.md lists the forms."""
