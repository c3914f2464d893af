"""NTHR's scores and GWHES: against loops over all pairs, and against the derivative that the theorem speaks of."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.losses import gwhes, nthr_weights, token_influence


def group(seed, rollouts=5, vocabulary=11, width=4, correct=2, dtype=torch.float64):
    """A group: hidden states [N, d], output layer [V, d], tokens, correct [N], rollout and action of each token."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (rollouts,), generator=g)
    rollout_ids = torch.repeat_interleave(torch.arange(rollouts) * 3 + 1, lengths)
    n = len(rollout_ids)
    return {
        "hidden": torch.randn(n, width, generator=g, dtype=dtype),
        "unembedding": torch.randn(vocabulary, width, generator=g, dtype=dtype),
        "token_ids": torch.randint(0, vocabulary, (n,), generator=g),
        "correct": rollout_ids < 3 * correct + 1,
        "rollout_ids": rollout_ids,
        "action_ids": torch.randint(1, 3, (n,), generator=g),
    }


def scores(x):
    return [x[name] for name in ("hidden", "unembedding", "token_ids", "correct")]


def by_unit(units, per_token):
    """The sum over the tokens of each rollout or action."""
    sums = dict.fromkeys(units, 0.0)
    for unit, value in zip(units, per_token, strict=True):
        sums[unit] += value
    return sums


def pairs(x):
    """α_nm ⟨h_n, h_m⟩ of all pairs, [N][N], one number at a time, over V*."""
    hidden, weights, tokens = x["hidden"].tolist(), x["unembedding"].tolist(), x["token_ids"].tolist()
    errors = []
    for h, y in zip(hidden, tokens, strict=True):
        logits = [sum(a * b for a, b in zip(row, h, strict=True)) for row in weights]
        total = sum(math.exp(z) for z in logits)
        errors.append({v: (v == y) - math.exp(logits[v]) / total for v in set(tokens)})

    def product(n, m):
        alpha = sum(errors[n][v] * errors[m][v] for v in errors[n])
        return alpha * sum(a * b for a, b in zip(hidden[n], hidden[m], strict=True))

    return [[product(n, m) for m in range(len(tokens))] for n in range(len(tokens))]


@pytest.mark.parametrize("seed", range(20))
def test_scores_equal_the_loops_over_pairs(seed):
    x = group(seed, rollouts=2 + seed % 5, correct=1 + seed % 3, vocabulary=3 + seed % 20)
    table = pairs(x)
    correct, rollout, action = (x[name].tolist() for name in ("correct", "rollout_ids", "action_ids"))
    n = len(correct)
    influence = [sum(table[i][j] for j in range(n) if correct[j]) for i in range(n)]
    for chunk in (1, 3, 1024):
        torch.testing.assert_close(
            token_influence(*scores(x), chunk=chunk), torch.tensor(influence, dtype=torch.float64), rtol=0, atol=1e-9
        )

    ids = sorted(set(rollout))
    flags = {r: correct[rollout.index(r)] for r in ids}
    p = sum(flags.values()) / len(ids)
    values = dict.fromkeys(ids, 0.0)
    actions = dict.fromkeys(zip(rollout, action, strict=True), 0.0)
    for i in range(n):
        for j in range(n):
            if 0 < p < 1:
                part = -math.sqrt((1 - p) / p) if correct[j] else math.sqrt(p / (1 - p))
                values[rollout[i]] += part * table[i][j]
                actions[rollout[i], action[i]] += part * table[i][j]
    per_token = gwhes(*scores(x), x["rollout_ids"], chunk=2).tolist()
    assert by_unit(rollout, per_token) == pytest.approx(values, abs=1e-9)
    assert by_unit(list(zip(rollout, action, strict=True)), per_token) == pytest.approx(actions, abs=1e-9)

    eta, beta = 2 * abs(0.5 - p), (1.0, 0.3)[seed % 2]
    means = [sum(influence[i] for i in range(n) if rollout[i] == r) / rollout.count(r) for r in ids if flags[r]]
    weights = [eta if 0 < p < 1 and not correct[i] and influence[i] > beta * min(means) else 1.0 for i in range(n)]
    got = nthr_weights(torch.tensor(influence, dtype=torch.float64), x["correct"], x["rollout_ids"], beta=beta)
    torch.testing.assert_close(got, torch.tensor(weights, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_given_log_probs_spare_the_projection_and_change_nothing(seed):
    x = group(seed)
    logits = x["hidden"] @ x["unembedding"].T
    logprobs = logits.log_softmax(-1).gather(1, x["token_ids"][:, None])[:, 0]
    torch.testing.assert_close(token_influence(*scores(x), logprobs=logprobs), token_influence(*scores(x)))
    torch.testing.assert_close(
        gwhes(*scores(x), x["rollout_ids"], logprobs=logprobs), gwhes(*scores(x), x["rollout_ids"])
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("correct", [1, 2, 3, 4])
def test_gwhes_is_the_derivative_of_a_correct_rollouts_likelihood(seed, correct):
    """One SGD step of the GRPO loss by the output layer: d log π(y_i) / d(step size) = −𝒢_i / Z, for every rollout.

    Measured by autograd for the step and by central differences for what it does. The vocabulary is V*.
    """
    x = group(seed, correct=correct, vocabulary=5)
    x["token_ids"][:5] = torch.arange(5)  # every token occurs
    hidden, tokens, rollout = x["hidden"], x["token_ids"], x["rollout_ids"]
    ids = rollout.unique()
    rewards = torch.stack([x["correct"][rollout == r][0].double() for r in ids])
    advantages = (rewards - rewards.mean()) / rewards.std(correction=0)
    per_token = advantages[torch.searchsorted(ids, rollout)]
    z = len(tokens)

    def likelihoods(weights):
        logprobs = (hidden @ weights.T).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        return torch.stack([logprobs[rollout == r].sum() for r in ids]), logprobs

    weights = x["unembedding"].clone().requires_grad_()
    loss = -(per_token * likelihoods(weights)[1]).sum() / z
    (gradient,) = torch.autograd.grad(loss, weights)
    step = 1e-5
    up, down = (likelihoods(x["unembedding"] - s * gradient)[0] for s in (step, -step))
    measured = (up - down) / (2 * step)
    assert measured.abs().max() > 1e-3
    predicted = by_unit(rollout.tolist(), (-gwhes(*scores(x), rollout) / z).tolist())
    assert measured.tolist() == pytest.approx([predicted[r] for r in ids.tolist()], rel=1e-4, abs=1e-6)


def test_a_step_on_a_token_changes_the_correct_rollouts_by_its_influence():
    x = group(3, vocabulary=4)
    x["token_ids"][:4] = torch.arange(4)
    hidden, tokens = x["hidden"], x["token_ids"]

    def logprobs(weights):
        return (hidden @ weights.T).log_softmax(-1).gather(1, tokens[:, None])[:, 0]

    influence = token_influence(*scores(x))
    for n in range(len(tokens)):
        weights = x["unembedding"].clone().requires_grad_()
        (direction,) = torch.autograd.grad(logprobs(weights)[n], weights)
        up, down = (logprobs(x["unembedding"] + s * direction)[x["correct"]].sum() for s in (1e-5, -1e-5))
        assert (up - down).item() / 2e-5 == pytest.approx(influence[n].item(), rel=1e-4, abs=1e-6)


def test_published_weights():
    """β = −∞ scales every incorrect token; half correct gives 0; no incorrect rollout changes nothing."""
    x = group(1, rollouts=5, correct=1)
    s = token_influence(*scores(x))
    everywhere = nthr_weights(s, x["correct"], x["rollout_ids"], beta=-math.inf)
    torch.testing.assert_close(everywhere, torch.where(x["correct"], 1.0, 0.6).double())
    x = group(1, rollouts=4, correct=2)
    s = token_influence(*scores(x))
    assert set(nthr_weights(s, x["correct"], x["rollout_ids"], beta=-math.inf)[~x["correct"]].tolist()) == {0.0}
    for correct in (0, 4):
        x = group(1, rollouts=4, correct=correct)
        s = token_influence(*scores(x))
        assert (nthr_weights(s, x["correct"], x["rollout_ids"]) == 1).all()
        assert (gwhes(*scores(x), x["rollout_ids"]) == 0).all()


def test_precision_order_and_gradients():
    x = group(4)
    exact = token_influence(*scores(x))
    single = {k: v.float() if v.is_floating_point() else v for k, v in x.items()}
    assert token_influence(*scores(single)).dtype == torch.float32
    torch.testing.assert_close(token_influence(*scores(single)).double(), exact, rtol=1e-4, atol=1e-4)
    half = {**single, "hidden": single["hidden"].bfloat16()}
    assert token_influence(*scores(half)).dtype == torch.float32
    live = {**x, "hidden": x["hidden"].clone().requires_grad_()}
    assert not token_influence(*scores(live)).requires_grad
    order = torch.randperm(len(exact), generator=torch.Generator().manual_seed(0))
    shuffled = {k: v if k == "unembedding" else v[order] for k, v in x.items()}
    torch.testing.assert_close(token_influence(*scores(shuffled)), exact[order])
    whole = gwhes(*scores(x), x["rollout_ids"])
    torch.testing.assert_close(gwhes(*scores(shuffled), shuffled["rollout_ids"]), whole[order])
    none = {k: v if k == "unembedding" else v[:0] for k, v in x.items()}
    assert token_influence(*scores(none)).shape == gwhes(*scores(none), none["rollout_ids"]).shape == (0,)
