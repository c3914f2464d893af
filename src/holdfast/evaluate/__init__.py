"""Evaluation of a policy: methods, results with intervals and paired tests, probes of one update.

Read first: `methods.py`, `run.py`, `results.py`, `probes/__init__.py`.
"""
