"""Log-probs of given tokens, and what makes a pass over them cheaper."""
