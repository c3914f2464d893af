"""What a recipe names, opened: questions, retriever, protocol, the agent of a run."""

from holdfast.train.loading import (
    Questions,
    Retrievers,
    check_index,
    load_agent,
    load_protocol,
    load_questions,
    load_recipe,
    load_retriever,
    load_retrievers,
    make_agent,
    read_passages,
)

__all__ = [
    "Questions",
    "Retrievers",
    "check_index",
    "load_agent",
    "load_protocol",
    "load_questions",
    "load_recipe",
    "load_retriever",
    "load_retrievers",
    "make_agent",
    "read_passages",
]
