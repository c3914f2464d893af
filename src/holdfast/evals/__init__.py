"""Evaluation: methods, runs that can be stopped, results with intervals, paired tests and tables."""
