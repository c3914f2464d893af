"""A dry run shows the prompt that the model reads, and says what is too little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.protocol import CallTurn
from holdfast.agent.tools import PRESETS
from holdfast.base.errors import ConfigError
from holdfast.model.text.chat_template import ChatTemplate
from holdfast.recipe import load
from holdfast.tasks.questions import Example
from holdfast.tasks.task_set import Questions
from holdfast.train.prepare import exact_prompt, what_is_too_little

MARKED = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
CHATML = Path(__file__).parents[2] / "examples" / "chatml_tools.jinja"


@pytest.fixture
def chatty(learn_tokenizer):
    return learn_tokenizer(
        ["Who lives in Orsa? user assistant"],
        300,
        ["<|im_start|>", "<|im_end|>"],
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
    )


def test_the_prompt_is_shown_as_the_model_reads_it(chatty) -> None:
    whole = replace(PRESETS["clean"], prompt=MARKED, template=ChatTemplate("none"))
    assert exact_prompt("Who?", whole, chatty) == MARKED.replace("{question}", "Who?")


def test_a_prompt_that_its_template_would_wrap_again_is_refused(chatty) -> None:
    template = ChatTemplate(CHATML)
    plain = replace(PRESETS["tools"], prompt="{question}", template=template)
    assert exact_prompt("Who?", plain, chatty).count("Who?") == 1
    with pytest.raises(ConfigError, match=r"^protocol.prompt writes <\|im_start\|>, and so does chat template"):
        exact_prompt("Who?", replace(plain, prompt=MARKED), chatty)


@pytest.mark.parametrize(
    ("settings", "prompt", "template"),
    [
        ('[protocol]\npreset = "tools"\n', None, "auto"),
        ('[protocol]\npreset = "sapo"\n', None, "auto"),
        ('[model]\nchat_template = "auto"\n', None, "auto"),
        ('[protocol]\npreset = "tools"\nprompt = "{question}"\n', "{question}", "auto"),
        ('[protocol]\npreset = "clean"\n', MARKED, "none"),  # the same
        ("[protocol]\ntopk = 2\n", MARKED, "none"),
    ],
)
def test_another_preset_or_template_does_not_inherit_the_prompt(
    settings: str, prompt: str | None, template: str, tmp_path: Path
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(f'extends = "factbook"\n{settings}')
    config = load(path)
    assert (config.protocol.prompt, config.model.chat_template) == (prompt, template)


def questions(dev: int, test: int = 0) -> Questions:
    def some(split: str, count: int) -> tuple[Example, ...]:
        return tuple(
            Example(source="s", split=split, index=i, question="?", golden_answers=("x",)) for i in range(count)
        )

    return Questions(train=some("train", 300), dev=some("dev", dev), test=some("test", test))


def test_what_is_too_little_is_said_and_nothing_else() -> None:
    once, twice = ("?", [("a", ""), ("b", "")]), ("?", [("a", ""), ("b", ""), ("c", "")])
    assert list(what_is_too_little([twice] * 200, questions(100))) == []
    assert list(what_is_too_little(None, questions(6, 100))) == []
    few, no_second, scores = what_is_too_little([once] * 39, questions(6))
    assert few.startswith("39 demonstrations") and "second search" in no_second
    assert "6 dev questions" in scores and "0.19 to 0.81" in scores  # 0.5 ± 1.96 / (2 sqrt(6 + 1.96²))


def test_a_tool_that_no_demonstration_calls_is_named() -> None:
    call = ("?", [("a", ""), (CallTurn("", "days", {"year": 1}), "365"), ("b", "")])
    assert list(what_is_too_little([call] * 200, questions(100), ["search", "days"])) == []
    (unseen,) = what_is_too_little([call] * 200, questions(100), ["search", "days", "price"])
    assert "no demonstration calls price" in unseen
    assert list(what_is_too_little(None, questions(100), ["search", "days"])) == []  # a large model needs none
