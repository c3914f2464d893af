"""holdfast trains LLM search agents with reinforcement learning, and finds out why a run collapses.

Importing this package imports neither torch nor transformers; take what you need from its modules, for example
`from holdfast.losses import llds_penalty, reduce_loss` (needs torch alone).
"""

__version__ = "0.1.0"
