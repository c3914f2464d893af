"""One of two processes that share each rollout: `python slime_two_ranks.py RANK STORE BATCH OUT`.

Computes slime's policy loss with and without the penalty on this process's pieces, by slime's own functions.
"""

from __future__ import annotations

import sys
from argparse import Namespace

import torch


def main(rank: int, store: str, batch_path: str, out: str) -> None:
    """Writes {added loss, added gradient of this process's logits, metrics}."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(store, 2), rank=rank, world_size=2)
    from megatron.core import mpu

    mpu.initialize_model_parallel(context_parallel_size=2)
    from slime.backends.megatron_utils import cp_utils
    from slime.backends.megatron_utils.loss import policy_loss_function

    from holdfast.adapters.slime import loss

    rows, logits, args = torch.load(batch_path, weights_only=False)
    lengths = list(zip(rows["total_lengths"], rows["response_lengths"], strict=True))
    for name in ("log_probs", "advantages", "rollout_log_probs"):
        rows[name] = [cp_utils.slice_log_prob_with_cp(x, *size) for x, size in zip(rows[name], lengths, strict=True)]
    local = torch.cat([cp_utils.slice_with_cp(part, 0.0) for part in logits[0].split(rows["total_lengths"])])
    results = []
    for function in (policy_loss_function, loss):
        mine = local[None].clone().requires_grad_()
        reduce = cp_utils.get_sum_of_sample_mean(
            rows["total_lengths"], rows["response_lengths"], rows["loss_masks"], rows["rollout_mask_sums"]
        )
        value, metrics = function(Namespace(**args), rows, mine * 1, reduce)
        results.append((value.detach(), torch.autograd.grad(value, mine)[0][0], metrics))
    (base, base_gradient, _), (total, gradient, metrics) = results
    torch.save({"loss": total - base, "gradient": gradient - base_gradient, "metrics": metrics}, out)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
