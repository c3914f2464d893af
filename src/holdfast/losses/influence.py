"""What the negative gradient of a group does to its correct rollouts: token scores, NTHR's weights, GWHES.

The gradient of log π(y_n) by the output layer W, logits = W h, is g_n h_nᵀ with g_n = e_{y_n} − π_n. So the step that
one token's gradient takes changes another token's log-prob by ⟨g_n, g_m⟩⟨h_n, h_m⟩ to first order. Everything here is
a sum of such products, over M = Σ g hᵀ and never over pairs.

All functions take one group (one question): its sampled tokens in a row, rollout after rollout.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast.losses._tensors import check_ids, check_tensor, upcast


@torch.no_grad()
def token_influence(
    hidden: Tensor,
    unembedding: Tensor,
    token_ids: Tensor,
    correct: Tensor,
    *,
    logprobs: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """How strongly the gradient of each token is tied to that of the group's correct rollouts.

        s_n = Σ_{m correct} α_nm ⟨h_n, h_m⟩        α_nm = ⟨e_{y_n} − π_n, e_{y_m} − π_m⟩

    s_n is the increase of the correct rollouts' summed log-likelihood per unit of log-likelihood gradient that a step
    takes on token n through the output layer. A token of an incorrect rollout is pushed down, so with a large s_n it
    takes the correct rollouts with it. α is over V*, the tokens that occur in the group; π is over the whole
    vocabulary and not renormalised. m = n is included.

    Args:
        hidden: float [N, d], the input of the output layer that predicts the token.
        unembedding: float [V, d], the output layer. With a sampling temperature, divide it by that.
        token_ids: int [N], the tokens y_n.
        correct: bool [N], True on tokens of correct rollouts.
        logprobs: float [N], log π(y_n), of the same weights and temperature. With them only V* is projected: a large
            vocabulary then costs nothing. None: computed.
        chunk: tokens that are projected at once.

    Returns:
        float [N], float32, or float64 for float64 `hidden`; detached. Zeros where no rollout is correct.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit, or a chunk below 1.

    Source: NTHR (arXiv 2505.18830), its score of negative tokens, sums first. It reads the size of V* from the device.

    Two tokens at one state: the second is wrong, and shares the state of the correct first.

    >>> hidden, unembedding = torch.ones(2, 1), torch.zeros(2, 1)  # π = 1/2 each: g = (½, −½) and (−½, ½)
    >>> token_influence(hidden, unembedding, torch.tensor([0, 1]), torch.tensor([True, False])).tolist()
    [0.5, -0.5]
    """
    group = _Group(hidden, unembedding, token_ids, logprobs, chunk)
    _check_correct(correct, len(hidden))
    return group.project(group.outer(correct))


@torch.no_grad()
def nthr_weights(influence: Tensor, correct: Tensor, rollout_ids: Tensor, *, beta: float = 1.0) -> Tensor:
    """NTHR's factors on the advantages of a group's tokens: less for incorrect tokens that pull correct ones down.

        w_n = η = 2·|0.5 − p|   where n is incorrect and s_n > τ,  else 1
        τ = β · min over correct rollouts of the mean s over their tokens          p: share of correct rollouts

    Args:
        influence: float [N], s of `token_influence`.
        correct: bool [N], equal on all tokens of a rollout.
        rollout_ids: int [N], which rollout a token is in.
        beta: β. −∞ scales every incorrect token.

    Returns:
        float [N], in the dtype of `influence`; ones for a group that is all correct or all incorrect.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit; a rollout that is correct in part; β that is NaN.

    Source: arXiv 2505.18830, section 5: β = 1, η as above. Half correct gives η = 0; one of five 0.6.

    >>> s, correct = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([True, False, False])
    >>> [round(w, 4) for w in nthr_weights(s, correct, torch.tensor([0, 1, 2])).tolist()]
    [1.0, 0.3333, 1.0]
    """
    if beta != beta:
        raise ValueError("beta is not a number")
    check_tensor("influence", influence)
    if not influence.is_floating_point() or influence.dim() != 1:
        raise ValueError(f"influence must be floating point [N], not {influence.dtype} {list(influence.shape)}")
    rollout, flags = _rollouts(correct, rollout_ids, influence)
    p = float(flags.to(torch.float64).mean()) if len(flags) else 0.0
    if p in (0.0, 1.0):
        return torch.ones_like(influence)
    sums = influence.new_zeros(len(flags)).index_add_(0, rollout, influence)
    means = sums / torch.bincount(rollout, minlength=len(flags))
    lowest = means[flags].min()
    above = influence > (lowest * beta if beta > -torch.inf else -torch.inf)
    return torch.where(~correct & above, 2 * abs(0.5 - p), torch.ones_like(influence))


@torch.no_grad()
def gwhes(
    hidden: Tensor,
    unembedding: Tensor,
    token_ids: Tensor,
    correct: Tensor,
    rollout_ids: Tensor,
    *,
    logprobs: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """The group-weighted hidden embedding score: how little a GRPO step will raise each correct rollout, by token.

        𝒢_i = p⁻ Σ_{k∈i} Σ_{m incorrect} α_km ⟨h_k, h_m⟩ − p⁺ Σ_{k∈i} Σ_{m correct} α_km ⟨h_k, h_m⟩
        p⁺ = √((1 − p) / p),   p⁻ = √(p / (1 − p)),   p: share of correct rollouts

    p⁺ and −p⁻ are the group's advantages for rewards of 0 and 1, by the population's standard deviation. A step of size
    s on −(1/Z) Σ A log π, by the output layer alone, changes log π(y_i) by −s·𝒢_i / Z to first order: exactly where V*
    is the whole vocabulary. Above 0, the rollout becomes less likely: lazy likelihood displacement.

    Args:
        hidden, unembedding, token_ids, correct, logprobs, chunk: see `token_influence`. `correct` is equal on all
            tokens of a rollout.
        rollout_ids: int [N], which rollout a token is in.

    Returns:
        float [N], the term of 𝒢_i of each token k; its sum over the tokens of rollout i is 𝒢_i, and over those of an
        action the score of the action. 0 for a group that is all correct or all incorrect, whose advantages are 0. The
        papers define it for correct rollouts; for an incorrect one it is the same derivative.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit; a rollout that is correct in part.

    Source: NTHR (arXiv 2505.18830, Thm 4.4) for rollouts; LLDS (2512.04220 v2, Thms 4.2 and A.1) for actions. Both
    leave out the part of the derivative that goes through the hidden states.

    >>> hidden, unembedding = torch.ones(2, 1), torch.zeros(2, 1)
    >>> ids, correct = torch.tensor([0, 1]), torch.tensor([True, False])
    >>> gwhes(hidden, unembedding, ids, correct, ids).tolist()  # both gradients raise the correct token
    [-1.0, 1.0]
    """
    group = _Group(hidden, unembedding, token_ids, logprobs, chunk)
    _, flags = _rollouts(correct, rollout_ids, group.hidden[:, 0])
    p = float(flags.to(torch.float64).mean()) if len(flags) else 0.0
    if p in (0.0, 1.0):
        return group.hidden.new_zeros(len(correct))
    toward_incorrect = (p / (1 - p)) ** 0.5 * group.outer(~correct)
    return group.project(toward_incorrect - ((1 - p) / p) ** 0.5 * group.outer(correct))


class _Group:
    """The tokens of a group, and their gradients g hᵀ by the output layer's rows for V*."""

    def __init__(
        self, hidden: Tensor, unembedding: Tensor, token_ids: Tensor, logprobs: Tensor | None, chunk: int
    ) -> None:
        check_tensor("hidden", hidden)
        check_tensor("unembedding", unembedding)
        if hidden.dim() != 2 or not hidden.is_floating_point():
            raise ValueError(f"hidden must be floating point [N, d], not {hidden.dtype} {list(hidden.shape)}")
        if unembedding.dim() != 2 or unembedding.shape[1] != hidden.shape[1]:
            raise ValueError(
                f"unembedding has shape {list(unembedding.shape)}, but hidden states of width {hidden.shape[1]} need "
                f"[V, {hidden.shape[1]}]; an output layer that is sharded must be gathered first"
            )
        if chunk < 1:
            raise ValueError(f"chunk={chunk} must be at least 1")
        check_ids("token_ids", token_ids, hidden[:, 0])
        self.hidden = upcast(hidden.detach())
        vocabulary, self._token = torch.unique(token_ids, return_inverse=True)
        self._rows = unembedding.detach()[vocabulary].to(self.hidden.dtype)
        self._chunk = chunk
        if logprobs is None:
            self._normaliser = self._log_normalisers(unembedding.detach())
        else:
            check_tensor("logprobs", logprobs)
            if logprobs.shape != token_ids.shape:
                raise ValueError(f"logprobs has shape {list(logprobs.shape)}, but there are {len(hidden)} tokens")
            chosen = (self.hidden * self._rows[self._token]).sum(-1)
            self._normaliser = chosen - logprobs.detach().to(self.hidden.dtype)

    def outer(self, selected: Tensor) -> Tensor:
        """Σ g hᵀ over the selected tokens: [V*, d]."""
        total = torch.zeros_like(self._rows)
        for part in self._parts():
            errors = torch.where(selected[part, None], self._errors(part), 0.0)
            total.addmm_(errors.T, self.hidden[part])
        return total

    def project(self, matrix: Tensor) -> Tensor:
        """gᵀ `matrix` h of each token: [N]."""
        values = [((self._errors(part) @ matrix) * self.hidden[part]).sum(-1) for part in self._parts()]
        return torch.cat(values) if values else self.hidden.new_zeros(0)

    def _errors(self, part: slice) -> Tensor:
        """e_y − π on V*, of a chunk of tokens: [n, V*]."""
        errors = -(self.hidden[part] @ self._rows.T - self._normaliser[part, None]).exp()
        errors.scatter_add_(1, self._token[part, None], torch.ones_like(errors[:, :1]))
        return errors

    def _log_normalisers(self, unembedding: Tensor) -> Tensor:
        weights = unembedding.to(self.hidden.dtype)
        values = [(self.hidden[part] @ weights.T).logsumexp(-1) for part in self._parts()]
        return torch.cat(values) if values else self.hidden.new_zeros(0)

    def _parts(self) -> Iterator[slice]:
        for start in range(0, len(self._token), self._chunk):
            yield slice(start, start + self._chunk)


def _rollouts(correct: Tensor, rollout_ids: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """The index [N] of each token's rollout, and bool [G]: which rollouts are correct."""
    _check_correct(correct, len(like))
    check_ids("rollout_ids", rollout_ids, like)
    ids, rollout = torch.unique(rollout_ids, return_inverse=True)
    tokens = torch.bincount(rollout, minlength=len(ids))
    hits = torch.bincount(rollout[correct], minlength=len(ids))
    if bool(((hits > 0) & (hits < tokens)).any()):
        raise ValueError("correct differs within a rollout; it says whether the whole rollout is correct")
    return rollout, hits > 0


def _check_correct(correct: Tensor, tokens: int) -> None:
    check_tensor("correct", correct)
    if correct.dtype != torch.bool:
        raise TypeError(f"correct must be bool, not {correct.dtype}; pass correct.bool()")
    if correct.shape != (tokens,):
        raise ValueError(f"correct has shape {list(correct.shape)}, but there are {tokens} tokens")
