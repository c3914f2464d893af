"""What a recipe names, opened: task set, questions, retriever, protocol, the agent of a run."""

from holdfast.recipe.loading import find_recipe
from holdfast.tasks.opening import (
    Retrievers,
    check_index,
    load_agent,
    load_protocol,
    load_questions,
    load_recipe,
    load_retriever,
    load_retrievers,
    make_agent,
    open_tasks,
)
from holdfast.tasks.task_set import Questions

__all__ = [
    "Questions",
    "Retrievers",
    "check_index",
    "find_recipe",
    "load_agent",
    "load_protocol",
    "load_questions",
    "load_recipe",
    "load_retriever",
    "load_retrievers",
    "make_agent",
    "open_tasks",
]
