"""Evaluation of a policy: methods, results with intervals and paired tests.

Read first: `methods.py`, `run.py`, `results.py`.
"""
