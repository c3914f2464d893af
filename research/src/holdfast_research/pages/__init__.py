"""Scripts that make pages, figures and tables of the documentation from kept runs."""
