import pytest
import torch

from holdfast.losses import preserved_mask

# rows: positive and right; positive, not right (partial credit); A = 0, right; A = 0, wrong; negative but right; NaN
A = torch.tensor([[1.0], [0.5], [0.0], [0.0], [-0.5], [float("nan")]])
RIGHT = torch.tensor([[True], [False], [True], [False], [True], [True]])
MASK = torch.ones(6, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("nonnegative", [True, True, True, True, False, False]),
        ("positive", [True, True, False, False, False, False]),
        ("correct", [True, True, True, False, False, False]),
        ("all", [True, True, True, True, True, False]),
    ],
)
def test_rules(rule, kept):
    got = preserved_mask(A, MASK, rule=rule, correct=RIGHT)
    assert got.dtype == torch.bool and got.tolist() == [[k, k] for k in kept]


def test_nothing_outside_the_loss_mask_is_preserved():
    mask = torch.tensor([[True, False]])
    assert preserved_mask(torch.ones(1, 1), mask).tolist() == [[True, False]]
    assert preserved_mask(torch.ones(2), torch.tensor([True, False])).tolist() == [True, False]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"rule='correct' needs.*pass correct"):
        preserved_mask(A, MASK, rule="correct")
    with pytest.raises(ValueError, match=r"correct has shape \[6\].*correct\[:, None\]"):
        preserved_mask(A, MASK, rule="correct", correct=RIGHT[:, 0])
    with pytest.raises(TypeError, match="correct must be bool"):
        preserved_mask(A, MASK, correct=RIGHT.float())  # refused even where the rule does not look at it
    with pytest.raises(ValueError, match="advantages has shape"):
        preserved_mask(A[:, 0], MASK)
    with pytest.raises(ValueError, match="rule='A>0' does not exist"):
        preserved_mask(A, MASK, rule="A>0")
    with pytest.raises(TypeError, match="loss_mask must be bool"):
        preserved_mask(A, MASK.float())
