"""A search agent in TRL whose reward rises and then falls. trl_stabilised.py is this script with one line changed.

pip install 'holdfast-rl[train,trl]'
holdfast warm-start collapse --run.name school    # a tiny model that can search, made once in minutes
python examples/trl_failing.py runs/school/model  # 10 to 20 minutes on one core
"""

import sys
from pathlib import Path

from trl import GRPOConfig, GRPOTrainer

from holdfast.adapters.trl_monitor import Monitoring
from holdfast.adapters.trl_search import SearchRollouts, question_dataset, reward_functions
from holdfast.loading import find_recipe, load_protocol, load_questions, load_retrievers
from holdfast.recipe import load

Trainer = GRPOTrainer
OUTPUT = f"runs/{Path(__file__).stem}"


def train(model: str, rollout_batches: int = 60, questions: int = 32, output_dir: str = OUTPUT) -> Trainer:
    """GRPO in groups of 5, ten optimizer steps per rollout batch, sampled at top-p and top-k as published runs do."""
    recipe = load(find_recipe("collapse"))
    retriever = load_retrievers(recipe).train  # of the bundled world; yours would come from your own files
    functions, weights = reward_functions({"em": 1.0})
    args = GRPOConfig(
        output_dir=output_dir,
        num_generations=5,
        per_device_train_batch_size=questions // 2,
        gradient_accumulation_steps=1,
        steps_per_generation=10,
        max_steps=10 * rollout_batches,
        learning_rate=recipe.train.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10 * recipe.train.warmup,
        temperature=1.0,
        top_p=0.9,
        top_k=64,
        max_completion_length=512,
        reward_weights=weights,
        logging_steps=10,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    rollouts = SearchRollouts(retriever, load_protocol(recipe))
    data = question_dataset(load_questions(recipe).train)
    trainer = Trainer(model, functions, args=args, train_dataset=data, rollout_func=rollouts)
    trainer.add_callback(Monitoring())  # says what the log shows, while it trains: docs/guide/diagnose.md
    trainer.train()
    return trainer


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(f"Name the folder of the model, as here:\n\n{__doc__}")
    train(sys.argv[1])
