"""The methods of evaluation, each a value, in one table. Light: the command line checks names here."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.evals import methods
from holdfast.evals.methods import LIMITS, SINGLE_HOP_LIMITS, Conversation, Limits
from holdfast.search.protocol import R1, SearchProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to get answers from a model."""

    name: str
    conversation: Callable[[str, Limits], Conversation] | None = None
    """Of a question. None: episodes of the search agent, under the recipe's protocol."""
    bare: Callable[[str, Limits], Conversation] | None = None
    """The conversation without instructions, for a model that was taught the method (`warm_start.teaches`)."""
    preset: SearchProtocol | None = None
    """Of the search agent: whose prompt and turns it has instead of the recipe's."""
    searches: bool = False
    most_searches: str = ""
    """How many searches a question may have, as tables print it. Empty: one in every turn but the last."""
    single_call: bool = False
    """Its whole output is scored beside the extracted answer, as some published rows seem to have been."""

    def searches_allowed(self, protocol: SearchProtocol) -> str:
        """What tables print: `none`, or how many searches a question may have."""
        if not self.searches:
            return "none"
        return self.most_searches or str(protocol.max_turns - 1)


_ALL = (
    Method(name="direct", conversation=methods.direct, bare=methods.bare_direct, single_call=True),
    Method(name="cot", conversation=methods.chain_of_thought, single_call=True),
    Method(
        name="rag",
        conversation=methods.rag,
        bare=methods.bare_rag,
        searches=True,
        most_searches="1",
        single_call=True,
    ),
    Method(name="ircot", conversation=methods.ircot, searches=True, most_searches=str(LIMITS.sentences + 1)),
    Method(
        name="search-o1",
        conversation=methods.search_o1,
        searches=True,
        most_searches=f"{SINGLE_HOP_LIMITS.searches} (multi-hop {LIMITS.searches})",
    ),
    Method(name="r1", preset=R1),
    Method(name="search-r1", searches=True),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def method_named(name: str) -> Method:
    """Raises `ConfigError` when there is none of that name."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(METHODS)}"
        raise ConfigError(f"--method {name}: there is no such method; {hint}")
    return METHODS[name]
