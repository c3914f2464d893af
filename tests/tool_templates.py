"""Chat templates with tools: ours in the two common styles, and real ones from the package of TRL."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERMES = (Path(__file__).parents[1] / "examples" / "chatml_tools.jinja").read_text(encoding="utf-8").removesuffix("\n")
LLAMA = """
{{- bos_token }}
{%- if tools %}<|start_header_id|>system<|end_header_id|>

Reply with {"name": …, "parameters": {…}} to call one of {{ tools | tojson }}<|eot_id|>{% endif %}
{%- for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{% if m.tool_calls %}{% set call = m.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- elif m.role == 'tool' %}{{ m.content | tojson }}
{%- else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

# As Mistral's: the id of a call is repeated in its result, and the next message begins without a header.
_MISTRAL = """
{{- bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'tool' %}RESULT
{%- else %}{{ m.content }}{% for call in m.tool_calls %}{% set f = call.function %}CALL{% endfor %}{{ eos_token }}
{%- endif %}{% endfor %}"""
NEMO = _MISTRAL.replace(
    "CALL", '[TOOL_CALLS][{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ call.id }}"}]'
).replace("RESULT", '[TOOL_RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]')
SMALL = _MISTRAL.replace(
    "CALL", "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ call.id }}[ARGS]{{ f.arguments | tojson }}"
).replace("RESULT", "[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]{{ m.content }}[/TOOL_RESULTS]")

# Parameters as tags. As Qwen3.5's: thoughts are kept in earlier messages, and values are written as Python does.
XML = """
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>{{ '\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>{{ '\n' }}
{%- else %}<|im_start|>{{ m.role }}{{ '\n' }}
{%- if m.role == 'assistant' %}<think>
{{ m.reasoning_content }}
</think>{{ '\n\n' }}{% endif %}{{ m.content | trim }}
{%- for call in m.tool_calls %}{{ '\n\n' if m.content }}<tool_call>
<function={{ call.function.name }}>{{ '\n' }}
{%- for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value | string if value is string or value is not iterable else value | tojson }}
</parameter>{{ '\n' }}{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>{{ '\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>{{ '\n\n</think>\n\n' if thinking is false else '\n' }}{% endif %}"""

# As GLM's: no token ends a message but that of the next role.
NEXT_ROLE = """
{%- if tools %}<|system|>{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|observation|><tool_response>{{ m.content }}</tool_response>
{%- elif m.role == 'assistant' %}<|assistant|><think>{{ m.reasoning_content }}</think>{{ m.content }}
{%- for call in m.tool_calls %}<tool_call>{{ call.function.name }}
{%- for key, value in call.function.arguments | items %}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}
{%- else %}<|user|>{{ m.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# As MiniMax-M2's: a result after a message without a call is refused.
INVOKE = """
{%- if tools %}]~b]system
{{ tools | tojson }}[e~[{{ '\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{% if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif -%}
]~b]tool
<response>{{ m.content }}</response>
{%- elif m.role == 'assistant' %}]~b]ai{{ '\n' }}
{%- if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>{{ '\n\n' }}{% endif %}{{ m.content }}
{%- for call in m.tool_calls %}
<minimax:tool_call>
<invoke name="{{ call.function.name }}">{{ '\n' }}
{%- for key, value in call.function.arguments | items %}<parameter name="{{ key }}">
{{- value if value is string else value | tojson }}</parameter>{{ '\n' }}{% endfor %}</invoke>
</minimax:tool_call>{% endfor %}
{%- else %}]~b]user
{{ m.content }}{% endif %}[e~[{{ '\n' }}{% endfor %}
{%- if add_generation_prompt %}]~b]ai
<think>{{ '\n' }}{% endif %}"""

# As DeepSeek-V4's: the call says which of its values are texts.
DSML = """
{{- bos_token }}{{ tools | tojson }}
{%- for m in messages %}
{%- if m.role == 'tool' %}<｜User｜><tool_result>{{ m.content }}</tool_result>
{%- elif m.role == 'assistant' %}<｜Assistant｜>{{ '<think>' if thinking }}{{ m.reasoning_content }}</think>
{{- m.content }}
{%- for call in m.tool_calls %}{{ '\n\n' }}<｜DSML｜tool_calls>
<｜DSML｜invoke name="{{ call.function.name }}">{{ '\n' }}
{%- for key, value in call.function.arguments | items %}{% set text = value is string -%}
<｜DSML｜parameter name="{{ key }}" string="{{ text | tojson }}">{{ value if text else value | tojson }}
{%- if true %}</｜DSML｜parameter>{{ '\n' }}{% endif %}{% endfor %}</｜DSML｜invoke>
</｜DSML｜tool_calls>{% endfor %}<｜end▁of▁sentence｜>
{%- else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}{% endif %}"""

_BEGUN = HERMES.removesuffix("{% endif %}")
_FORGETS_THOUGHTS = _BEGUN.replace(
    "{{ m.content }}\n{%- for", "{{ m.content.split('</think>')[-1].lstrip() }}\n{%- for"
)
# As Gemma 4's: results are inside the model's turn, and keys and texts have quotes of their own.
QUOTED = """
{%- macro value(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}{{ '{' }}{% for k, x in v | items %}
{{- k }}:{{ value(x) }}{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}
{%- elif v is iterable %}[{% for x in v %}{{ value(x) }}{{ '' if loop.last else ',' }}{% endfor %}]
{%- else %}{{ v | tojson }}{% endif %}{% endmacro %}
{%- if tools %}<|turn>system
{{ tools | tojson }}<turn|>{{ '\n' }}{% endif %}
{%- for m in messages %}
{%- set after = messages[loop.index0 - 1].role if loop.index0 else '' %}
{%- if m.role == 'tool' and messages[loop.index0 - 1].tool_calls %}response:
{{- messages[loop.index0 - 1].tool_calls[0].function.name }}{value:{{ value(m.content) }}}<tool_response|>
{%- elif m.role == 'user' %}<|turn>user
{{ m.content }}<turn|>{{ '\n' }}
{%- elif m.role == 'assistant' %}{% if after != 'tool' %}<|turn>model{{ '\n' }}{% endif %}
{%- for call in m.tool_calls %}<|tool_call>call:{{ call.function.name }}{{ value(call.function.arguments) }}
{{- '<tool_call|><|tool_response>' }}{% endfor %}{{ m.content }}{% if not m.tool_calls %}<turn|>{{ '\n' }}{% endif %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model
{% endif %}"""

# As gpt-oss's: a turn is several messages, and results name the tool.
HARMONY = """
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|start|>functions.{{ messages[loop.index0 - 1].tool_calls[0].function.name -}}
{{- ' to=assistant' }}<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- elif m.role == 'assistant' %}
{%- if m.content and m.tool_calls %}<|start|>assistant<|channel|>analysis<|message|>{{ m.content }}<|end|>{% endif %}
{%- for call in m.tool_calls %}<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json
{{- '<|message|>' }}{{ call.function.arguments | tojson }}<|call|>{% endfor %}
{%- if not m.tool_calls %}<|start|>assistant<|channel|>final<|message|>{{ m.content -}}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

# As Kimi-K2's: the id of a call has its name, and the result repeats it.
NAMED_ID = """
{%- if tools %}<|im_start|>tools{{ tools | tojson }}<|im_end|>{% endif %}
{%- for m in messages %}<|im_start|>{{ m.name or m.role }}<|im_middle|>
{%- if m.role == 'tool' %}## Return of {{ m.tool_call_id }}
{{ m.content }}
{%- else %}{{ m.content }}{% for call in m.tool_calls %}<|calls|><|call|>{{ call.id }}<|argument|>
{{- call.function.arguments | tojson }}<|end_call|><|end_calls|>{% endfor %}{% endif %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant<|im_middle|>{% endif %}"""

OURS = {
    "hermes": HERMES,
    "llama": LLAMA,
    "nemo": NEMO,
    "mistral-small": SMALL,
    "xml": XML,
    "xml-without-thoughts": XML,
    "next-role": NEXT_ROLE,
    "invoke": INVOKE,
    "dsml": DSML,
    "quoted": QUOTED,
    "harmony": HARMONY,
    "named-id": NAMED_ID,
    "dsml-thinking": DSML,
    # As Qwen3 without thinking: the model's next message begins with an empty thought, and earlier ones have none.
    "empty-thought": _BEGUN + "{% if not thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    # As QwQ: the model's next message begins inside a thought, and earlier ones have lost it.
    "opened-thought": _FORGETS_THOUGHTS + "{% if thinking %}<think>\n{% endif %}{% endif %}",
}
VARIABLES = {
    "empty-thought": {"thinking": False},
    "opened-thought": {"thinking": True},
    "xml-without-thoughts": {"thinking": False},
    "dsml-thinking": {"thinking": True},
}
OF_TRL = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3_1", "llama3_2")

_MARKS = "INST", "TOOL_CALLS", "CALL_ID", "ARGS", "TOOL_RESULTS", "TOOL_CONTENT"
_HEADERS = ["</s>", *(f"[{slash}{mark}]" for mark in _MARKS for slash in ("", "/"))]
_HEADERS += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin|>", "<|im_start|>", "<|im_end|>"]
_HEADERS += ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "]~b]", "[e~["]
_HEADERS += ["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "｜DSML｜"]
_HEADERS += ["<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']
_HEADERS += ["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>", "<|constrain|>"]
_HEADERS += ["<|im_middle|>", "<|calls|>", "<|argument|>", "<|end_call|>", "<|end_calls|>"]
_TEXTS = [
    '<tool_call>\n{"name": "search", "arguments": {"query": "the lake of Orsa"}}\n</tool_call>',
    '{"name": "search", "parameters": {"query": "the lake"}}',
    "<think>\nlook for it.\n</think>\n\n",
    "<tool_response>\nDoc 1(Title: Orsa) the lake, the town.\n</tool_response>\nuser\nassistant\n",
    "漢字 café, no answer.\n",
] * 30


def template_text(name: str) -> str:
    """A template's text; a test that needs one of TRL is skipped without TRL."""
    if name in OURS:
        return OURS[name]
    spec = importlib.util.find_spec("trl")
    file = Path(str(spec.origin)).parent / "chat_templates" / f"{name}.jinja" if spec else None
    if file is None or not file.is_file():
        pytest.skip(f"the template {name} comes with TRL")
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def speaker(learn_tokenizer: Callable[..., Any]) -> Callable[[str], Any]:
    """speaker("hermes"): a tokenizer with that template. Its end of sequence is the template's end of a message."""
    learned = learn_tokenizer(_TEXTS, 462, ["<|pad|>", *_HEADERS], pad_token="<|pad|>", bos_token="<|begin|>")

    def make(name: str) -> Any:
        tokenizer = copy.deepcopy(learned)
        tokenizer.chat_template = text = template_text(name)
        ends = dict.fromkeys(["<|eot_id|>", "<|user|>", "[e~[", "<｜end▁of▁sentence｜>", "<turn|>", "<|return|>"])
        ends["[INST]"] = "</s>"
        tokenizer.eos_token = next((end or mark for mark, end in ends.items() if mark in text), "<|im_end|>")
        if text == DSML:  # as DeepSeek's: else the end of an empty thought could be one token with what follows
            tokenizer.add_tokens(["<think>", "</think>"])
        return tokenizer

    return make
