import pytest
import torch

from holdfast.losses import action_ids_from_mask


def ids(rows, sequence_ids=None):
    mask = torch.tensor(rows).bool()
    return action_ids_from_mask(
        mask, sequence_ids=None if sequence_ids is None else torch.tensor(sequence_ids)
    ).tolist()


def test_runs_are_numbered_within_their_row():
    assert ids([[0, 1, 1, 0, 1, 0], [1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]) == [
        [0, 1, 1, 0, 2, 0],
        [1, 0, 0, 2, 2, 2],
        [0, 0, 0, 0, 0, 0],
    ]


def test_adjacent_actions_merge_because_a_mask_cannot_tell_them_apart():
    assert ids([[0, 1, 1, 1, 1]]) == [[0, 1, 1, 1, 1]]


def test_alternating_one_token_actions():
    assert ids([[1, 0, 1, 0, 1]]) == [[1, 0, 2, 0, 3]]


def test_packed_rows_break_and_restart_where_the_sequence_changes():
    # The run of four ones is two actions: the last of the first sequence and the first of the second.
    mask = [0, 1, 0, 1, 1, 1, 1, 0, 1]
    rows = [4, 4, 4, 4, 4, 9, 9, 9, 9]
    assert ids(mask, rows) == [0, 1, 0, 2, 2, 1, 1, 0, 2]
    assert ids([mask], [rows]) == [[0, 1, 0, 2, 2, 1, 1, 0, 2]]
    assert ids(mask) == [0, 1, 0, 2, 2, 2, 2, 0, 3]  # without ids the two would be one


def test_a_sequence_without_actions_between_two_with_some():
    assert ids([1, 1, 0, 0, 1], [0, 0, 1, 2, 2]) == [1, 1, 0, 0, 1]


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="must be bool"):
        action_ids_from_mask(torch.tensor([[1, 0]]))
    with pytest.raises(ValueError, match="token dimension"):
        action_ids_from_mask(torch.tensor(True))
    with pytest.raises(ValueError, match="sequence_ids has shape"):
        ids([[1, 0]], [1, 0])
    with pytest.raises(TypeError, match="sequence_ids must be integers"):
        ids([1, 0], [1.0, 0.0])
