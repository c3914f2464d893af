"""The language model: loading it, sampling from it, and the log-probs that an update needs.

Read first: `language_model.py`, `policy.py`, `hf.py`, `logprobs.py`.
"""
