"""pytest's settings turn a warning that comes from holdfast into a failure, and leave other people's alone."""

from __future__ import annotations

import warnings

import pytest


@pytest.mark.parametrize("module", ["holdfast", "holdfast.losses.penalties", "holdfast_research.jobs"])
@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning, ResourceWarning, FutureWarning])
def test_ours_fail(module: str, category: type[Warning]) -> None:
    with pytest.raises(category, match="said by holdfast"):
        warnings.warn_explicit("said by holdfast", category, "file.py", 1, module=module)


def test_a_file_that_is_left_open_fails() -> None:
    """Python says so of whatever runs when it notices."""
    with pytest.raises(ResourceWarning):
        warnings.warn_explicit("unclosed file", ResourceWarning, "file.py", 1, module="threading")


@pytest.mark.parametrize("module", ["torch", "holdfastly", "tests.holdfast"])
def test_others_do_not(module: str) -> None:
    with warnings.catch_warnings(record=True) as said:  # keeps the filters; a warning that is an error still raises
        warnings.warn_explicit("said by another", UserWarning, "file.py", 1, module=module)
    assert [str(w.message) for w in said] == ["said by another"]
