"""TRL: any GRPOTrainer with a likelihood-preserving penalty, or with the missing series in its log.

    from holdfast.adapters.trl import LLDS, with_penalties

    Trainer = with_penalties(GRPOTrainer, LLDS(coef=0.2))
    args = GRPOConfig(..., steps_per_generation=8, gradient_accumulation_steps=2)  # 8 / 2 = 4 optimizer steps a batch
    trainer = Trainer(model, reward_funcs, args=args, train_dataset=questions)

With `with_penalties(GRPOTrainer)` and nothing else, loss and gradient stay as they are, bit for bit, and the log
gains `holdfast/...`: the likelihood of correct and incorrect rollouts, displacement, the importance ratio.

How it works. The subclass calls `super()` everywhere and copies nothing of the trainer. It reads the log-probs of the
host's forward pass. The penalty is a mean over preserved tokens under every `loss_type`; with `normalizer="policy"` it
is reduced as the host's loss is. Values outside the mask are set to 0 before the host computes with them: TRL
multiplies by the mask afterwards, where 0 · inf would be NaN.

It is off in evaluation, which TRL computes as always.
"""

from holdfast.adapters.trl.trainer import with_penalties
from holdfast.methods.penalties import LLDS, NLL, SAPO

__all__ = ["LLDS", "NLL", "SAPO", "with_penalties"]
