"""What a step logs of its rollouts."""
