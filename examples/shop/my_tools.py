"""A tool, and a script that shows how to use it: docs/guide/own-tools.md."""

import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculator(expression: str) -> float:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses, such as (3 + 4) / 2.
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return float(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{ast.unparse(node)} is not arithmetic; use numbers, + - * / and parentheses")

    return value(ast.parse(expression, mode="eval").body)


def solve(question):
    """What the calls for a question of the shop are. `holdfast data demonstrate` makes them, and sends the results."""
    count, item = question.split()[2], question.split()[4]
    (passage,) = yield {"tool": "search", "arguments": {"query": item}}
    price = passage.split()[-2]
    total = yield {"tool": "calculator", "arguments": {"expression": f"{count} * {price}"}}
    return {"answer": total.removesuffix(".0")}
