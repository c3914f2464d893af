"""The search agent: its protocol, rollouts of many at once, rewards, trajectories, and batches of tokens.

Read first: `protocol.py`, `trajectory.py`, `state.py`, `scheduler.py`, `batch.py`.
"""
