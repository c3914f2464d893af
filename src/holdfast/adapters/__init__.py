"""holdfast inside other trainers, one folder or module per host, and recipes translated for them.

A host is imported by its own modules alone. Whatever is imported of `verl/` registers the losses with verl, so
`verl_losses.py`, `verl_term.py` and `verl_watch.py`, which need no verl, stand beside it. Read first:
`trl/trainer.py`, `host_losses.py`, `launch/plan.py`.

`trl_search.py`, `trl_monitor.py`, `trl_environment.py` and `verl_agent.py` are the names that scripts and
configurations import. `host_tasks.py` and `tool_session.py` are the tasks of a recipe for hosts that hold the
conversation: `verifiers/`, found as `holdfast_verifiers`, and `openenv/`.
"""
