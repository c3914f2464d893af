"""holdfast inside other trainers, one module per host, and recipes translated for them.

A host is imported by its own modules alone. Read first: `trl.py`, `host_losses.py`, `launch/plan.py`.
"""
