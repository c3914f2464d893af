"""What every room needs: errors, files, settings sections, statistics of a series, scores of an answer. No torch."""
