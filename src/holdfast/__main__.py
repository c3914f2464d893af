"""`python -m holdfast` is `holdfast`."""

from holdfast.cli.main import app

app(prog_name="holdfast")
