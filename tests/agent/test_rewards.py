"""Reward parts of hand-made episodes."""

import pytest

from holdfast.agent.rewards import PARTS, check_weights, score_trajectory
from holdfast.agent.trajectory import Action, Answer, Invalid, Search, Status, Trajectory, Turn
from holdfast.base.errors import ConfigError

GOLDS = ("Lake Orsa", "Orsa")
ALL = {"em": 1.0, "f1": 0.5, "format": 0.25, "retrieval": 0.125}


def turn(action: Action, text: str = "", observation: str = "", hits: tuple[str, ...] = ()) -> Turn:
    return Turn(tokens=(1, 2), logprobs=(-0.1, -0.2), action=action, text=text, observation_text=observation, hits=hits)


def episode(*turns: Turn, status: Status = Status.OK) -> Trajectory:
    return Trajectory(example_id="s/train/0", prompt=(9,), turns=turns, status=status)


FOUND = turn(Search("lake"), observation="<information>Doc 1(Title: X) The lake, Orsa.</information>", hits=("d1",))
MISSED = turn(Search("lake"), observation="<information>Doc 1(Title: X) Mora.</information>", hits=("d2",))


def test_parts_and_their_weighted_sum():
    # em 1, f1 1, format 1, retrieval 1: 1 + .5 + .25 + .125
    scored = score_trajectory(episode(FOUND, turn(Answer("the orsa"))), GOLDS, ALL)
    assert scored.reward_parts == {"em": 1.0, "f1": 1.0, "format": 1.0, "retrieval": 1.0}
    assert scored.reward == 1.875
    assert scored.correct
    # "Orsa town": em 0; f1 against "Orsa" 2·1/(2+1) = 2/3, against "Lake Orsa" 2·1/(2+2) = 1/2; nothing retrieved
    scored = score_trajectory(episode(MISSED, turn(Answer("Orsa town"))), GOLDS, ALL)
    assert scored.reward == pytest.approx(0.5 * 2 / 3 + 0.25)
    assert not scored.correct


def test_em_and_f1_are_recorded_whatever_the_weights():
    scored = score_trajectory(episode(turn(Answer("Orsa"))), GOLDS, {"format": 1.0})
    assert scored.reward_parts == {"em": 1.0, "f1": 1.0, "format": 1.0}
    assert scored.reward == 1.0  # em and f1 have no weight
    assert score_trajectory(episode(turn(Answer("Orsa"))), GOLDS).reward == 1.0  # the default is EM


def test_format_wants_every_turn_valid_and_an_answer_at_the_end():
    bad = turn(Invalid("neither a search nor an answer"))
    answer = turn(Answer("Orsa"))
    for trajectory, value in [
        (episode(answer), 1.0),
        (episode(FOUND, MISSED, answer), 1.0),
        (episode(bad, answer), 0.0),
        (episode(FOUND, status=Status.TRUNCATED), 0.0),
        (episode(FOUND, bad, status=Status.TRUNCATED), 0.0),
        (episode(), 0.0),
    ]:
        assert score_trajectory(trajectory, GOLDS, {"format": 1.0}).reward_parts["format"] == value


def test_thrift_is_for_correct_answers_alone():
    right, wrong = turn(Answer("Orsa")), turn(Answer("Mora"))
    for trajectory, value in [
        (episode(right), 1.0),
        (episode(FOUND, right), 1.0),
        (episode(MISSED, MISSED, FOUND, right), 1 / 3),
        (episode(wrong), 0.0),
        (episode(FOUND, wrong), 0.0),
        (episode(FOUND, status=Status.TRUNCATED), 0.0),
    ]:
        assert score_trajectory(trajectory, GOLDS, {"thrift": 0.1}).reward == pytest.approx(0.1 * value)


def test_only_what_the_model_answered_is_scored():
    # An answer tag in a passage, in the note after an invalid turn, or in an unfinished thought is no answer.
    quoting = turn(Search("x"), observation="<information><answer> Orsa </answer></information>", hits=("d",))
    note = turn(Invalid("neither"), text="Orsa", observation="write <answer> Orsa </answer>")
    for turns in [(quoting,), (note,), (quoting, note)]:
        scored = score_trajectory(episode(*turns, status=Status.TRUNCATED), GOLDS, ALL)
        assert scored.reward_parts["em"] == scored.reward_parts["f1"] == 0.0


def test_retrieval_reads_what_the_model_saw_of_its_searches():
    weights = {"retrieval": 1.0}
    assert score_trajectory(episode(MISSED, FOUND), GOLDS, weights).reward == 1.0
    assert score_trajectory(episode(MISSED), GOLDS, weights).reward == 0.0
    # the note after an invalid turn, and the text of a search without hits, are no retrieval
    note = turn(Invalid("x"), observation="Orsa")
    nothing = turn(Search("x"), observation="<information>Orsa was not found</information>")
    assert score_trajectory(episode(note, nothing), GOLDS, weights).reward == 0.0
    # a golden answer of which nothing is left is not found in every passage
    assert score_trajectory(episode(MISSED), ("The", "Orsa"), weights).reward == 0.0


@pytest.mark.parametrize("status", [Status.RETRIEVAL_FAILED, Status.ERROR])
def test_an_outage_is_no_wrong_answer(status):
    scored = score_trajectory(episode(turn(Answer("Orsa")), status=status), GOLDS, ALL)
    assert scored.reward is None
    assert scored.reward_parts == {}
    # while an episode that ran out of turns earns its zero
    assert score_trajectory(episode(MISSED, status=Status.TRUNCATED), GOLDS).reward == 0.0


def test_scoring_changes_nothing_else():
    trajectory = episode(FOUND, turn(Answer("Orsa")))
    scored = score_trajectory(trajectory, GOLDS, ALL)
    assert trajectory.reward is None
    assert scored.turns == trajectory.turns
    assert scored.example_id == trajectory.example_id


def test_negative_weights_subtract():
    assert score_trajectory(episode(turn(Answer("Orsa"))), GOLDS, {"em": 1.0, "format": -0.25}).reward == 0.75


def test_weights_that_cannot_work():
    with pytest.raises(ConfigError, match="'fromat' does not exist; did you mean 'format'"):
        check_weights({"fromat": 1.0})
    with pytest.raises(ConfigError, match=f"the parts are {', '.join(PARTS)}"):
        check_weights({"bleu!": 1.0})
    with pytest.raises(ConfigError, match="finite"):
        check_weights({"em": float("nan")})
    with pytest.raises(ConfigError, match="every reward weight is 0"):
        check_weights({"em": 0.0, "f1": 0.0})
    with pytest.raises(ConfigError, match="every reward weight is 0"):
        score_trajectory(episode(), GOLDS, {})


@pytest.mark.parametrize("weight", [1e15, -1e15])
def test_a_reward_has_a_size_that_advantages_can_square(weight: float):
    right = episode(turn(Answer("Orsa")))
    assert score_trajectory(right, GOLDS, {"em": weight}).reward == weight
    with pytest.raises(ConfigError, match=r"reward weight em = -?11\d+\.1; a weight must be a finite number, at most"):
        score_trajectory(right, GOLDS, {"em": 1.1 * weight})
    with pytest.raises(ConfigError, match=r"the reward of a rollout is -?2e\+15; it must be a finite number, at most"):
        score_trajectory(right, GOLDS, {"em": weight, "f1": weight})
