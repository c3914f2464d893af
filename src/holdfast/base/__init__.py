"""What every room needs: errors, files, settings sections, scores of an answer. No torch."""
