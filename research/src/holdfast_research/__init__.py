"""The study: experiments are data (a recipe, arms, claims), run over seeds and judged by pure functions."""
