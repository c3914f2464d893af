"""Rollouts that trainers wrote down, read from their files, and what their texts show. docs/reference/rollouts.md."""
