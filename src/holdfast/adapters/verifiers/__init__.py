"""verifiers v1, and so prime-rl: the tasks of a recipe, our agent loop as a harness, and a renderer with exact ids.

verifiers finds an environment by the name of a top-level module, which is `holdfast_verifiers`:

    vf-eval holdfast-verifiers --env.taskset.recipe recipe.toml --env.agent.runtime.type subprocess --no-push ...

`renderer.py` has no line about tasks, and works for any harness that sends one result for each message.
"""
