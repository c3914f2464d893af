"""The losses in a bare PyTorch loop: `python examples/custom_loop.py`, a few seconds on a CPU.

The policy is a table of bigram logits. A rollout is a search action of two tokens, one feedback token it did not
sample, and an answer of two tokens; the answer is correct if it starts with the key that the feedback named.
"""

import torch

from holdfast import losses

QUESTIONS, GROUP, VOCABULARY, STEPS_PER_ROLLOUT = 8, 8, 16, 4
LOSS_MASK = torch.tensor([False, True, True, False, True, True])  # prompt, search, search, feedback, answer, answer


def rollout(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, 6] and rewards [B]."""
    key = torch.randint(4, VOCABULARY, (QUESTIONS,)).repeat_interleave(GROUP)
    tokens = [torch.zeros_like(key)]
    for sampled in LOSS_MASK[1:]:
        tokens.append(torch.multinomial(logits[tokens[-1]].softmax(-1), 1)[:, 0] if sampled else key)
    return torch.stack(tokens, dim=1), (tokens[4] == key).float()


def token_logprobs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-prob of each token given the one before it: [B, 6], 0 at the first."""
    picked = logits[ids[:, :-1]].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(picked, (1, 0))


def train(steps: int = 60, coef: float = 0.2, seed: int = 0) -> list[float]:
    """Mean reward of each rollout batch."""
    torch.manual_seed(seed)
    logits = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    history = []
    for step in range(steps):
        with torch.no_grad():
            ids, rewards = rollout(logits)
            old, mask = token_logprobs(logits, ids), LOSS_MASK.expand_as(ids)
        advantages = losses.group_advantages(rewards, torch.arange(QUESTIONS).repeat_interleave(GROUP))
        for _ in range(STEPS_PER_ROLLOUT):  # with one step, old equals new and the penalty is always 0
            new = token_logprobs(logits, ids)
            penalty = losses.llds_penalty(new, old, advantages, mask)
            policy = losses.clipped_policy_loss(new, old, advantages, mask)
            optimizer.zero_grad()
            losses.reduce_loss(policy + coef * penalty, mask).backward()
            optimizer.step()
        stats = losses.penalty_stats(penalty, new, old, mask, preserved=losses.preserved_mask(advantages, mask))
        history.append(rewards.mean().item())
        if step % 10 == 0:
            print(f"step {step:3d}  reward {history[-1]:.2f}  penalty active {stats['penalty/active_fraction']:.2f}")
    return history


if __name__ == "__main__":
    train()
