"""holdfast trains LLM search agents with reinforcement learning that does not collapse, and diagnoses runs that do.

Importing this package imports neither torch nor transformers; take what you need from its modules, for example
`from holdfast.losses import llds_penalty, reduce_loss` (needs torch alone).
"""

__version__ = "0.1.0"
