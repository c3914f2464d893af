"""Question sets: the seven of the papers, a sample that ships, and files in the four forms that trainers exchange."""
