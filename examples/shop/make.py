"""Make a shop beside this file: passages with prices, questions about them, and a small model that knows no tool yet.

    python make.py

What several of something cost takes two tools: a search for the price, and a calculator. The model is a Qwen2 of a few
hundred thousand random weights with a tokenizer and a chat template of its own, so that it learns within two minutes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from holdfast.tasks.world.model import build_model, build_tokenizer

HERE = Path(__file__).parent
NAMES = (
    "apple axe bag ball banjo basket bell belt bench boat book boot bottle bowl box broom brush bucket candle cap "
    "chair clock coat comb cup desk dish door drum fan flag flute fork glove hammer hat horn jar kettle key knife "
    "ladder lamp lock map mirror mug nail needle oar pan pen pillow pipe plate pot purse ring rope rug saddle saw "
    "scarf shoe shovel"
)
ITEMS, COUNTS = NAMES.split(), range(2, 20)
TEMPLATE = """
{%- for tool in tools or [] %}{{ tool.function.description + '\\n' }}{% endfor %}
{%- for m in messages %}{{ m.role + '\\n' }}
{%- if m.tool_calls %}{% set call = m.tool_calls[0].function -%}
<call>{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}</call>
{%- else %}{{ m.content }}
{%- endif %}<|endoftext|>{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}"""


def main() -> None:
    """Write passages.jsonl, questions.jsonl, test.jsonl and model/."""
    rng = random.Random(0)
    prices = {item: rng.randint(2, 99) for item in ITEMS}
    passages = [{"id": item, "title": item, "text": f"One {item} costs {prices[item]} crowns."} for item in ITEMS]
    asked = [(item, count) for item in ITEMS for count in COUNTS]
    rng.shuffle(asked)
    questions = [
        {"question": f"What do {count} of {item} cost?", "golden_answers": [str(count * prices[item])]}
        for item, count in asked
    ]
    for name, rows in (("passages", passages), ("questions", questions[:-200]), ("test", questions[-200:])):
        lines = (json.dumps(row) + "\n" for row in rows)
        (HERE / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    calls = [
        f'\nassistant\n<call>{{"name": "search", "arguments": {{"query": "{item}"}}}}</call>'
        f'\n<call>{{"name": "calculator", "arguments": {{"expression": "2 * 3"}}}}</call>\ntool\nDoc 1(Title: {item})'
        for item in ITEMS
    ]
    words = tuple(ITEMS)
    texts = [row["text"] for row in passages] + [row["question"] for row in questions[:500]] + calls * 3
    described = (
        "Search for passages. Returns the best ones, perhaps shortened.\nCompute an arithmetic expression.\nuser\n"
    )
    tokenizer = build_tokenizer([*texts, described * 3], words)
    tokenizer.chat_template = TEMPLATE
    model = build_model(tokenizer, hidden=64, layers=3)
    for part in (tokenizer, model):
        part.save_pretrained(HERE / "model")
    print(f"{HERE}: {len(passages)} passages, {len(questions) - 200} questions, 200 test questions, and a model")


if __name__ == "__main__":
    main()
