"""What scripts that print in Chinese call the things of a log, in English."""

from __future__ import annotations

import re

_WORDS = {
    "平均": "mean",
    "均值": "mean",
    "最大": "max",
    "最小": "min",
    "训练": "train",
    "验证": "val",
    "测试": "test",
    "奖励值": "reward",
    "奖励": "reward",
    "回报": "return",
    "得分": "score",
    "分数": "score",
    "损失": "loss",
    "准确率": "accuracy",
    "正确率": "accuracy",
    "成功率": "success",
    "学习率": "lr",
    "熵": "entropy",
    "梯度范数": "grad_norm",
    "回答长度": "response_length",
    "长度": "length",
    "散度": "",
    "步骤": "step",
    "步数": "step",
    "迭代": "iteration",
    "批次": "batch",
    "轮次": "epoch",
    "轮": "epoch",
}
_WORD = re.compile("|".join(sorted(_WORDS, key=len, reverse=True)))
_NTH = re.compile(r"第\s{0,3}(\d{1,15})\s{0,3}(?:步|轮|批|次迭代)")
_BLANKS = re.compile(" {2,}")


def in_english(line: str) -> str:
    """A line with these words in English.

    >>> in_english("步骤 12 平均奖励 0.5"), in_english("第 3 步: 奖励均值=0.5")
    ('step 12 mean reward 0.5', 'step 3: reward mean=0.5')
    """
    if line.isascii():
        return line
    line = _WORD.sub(lambda word: f" {_WORDS[word[0]]} ", _NTH.sub(r"step \1", line))
    return re.sub(r" (?=[:=：])", "", _BLANKS.sub(" ", line)).strip(" ")
