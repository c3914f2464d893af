"""The search agent: protocol, rollouts and the policies that sample them, trajectories, batches of tokens, log-probs.

Read first: `protocol.py`, `trajectory.py`, `state.py`, `scheduler.py`, `hf.py`, `batch.py`.
"""
