"""One recipe, translated for another trainer: TRL or verl.

`plan("verl", config, Machines(gpus=8))` is a value with everything the host needs: its options, the files to write and
notes on what differs. `write_plan` writes it into a folder. Nothing here imports a host or trains.

A translation keeps the meaning or refuses. Each host's module accounts for every setting of the schema:

    OPTIONS   the setting becomes options of the host; each option names the settings it comes from
    others    the setting is in a file: the script, the recipe, the settings of the agent loop, the questions
    NOTED     the setting has no meaning in the host; a value other than the default is reported
    REFUSED   the host has nothing like it; a value other than the default is an error that names the nearest one
"""

from holdfast.adapters.launch.plan import HOSTS, Machines, Plan, plan, write_plan
from holdfast.methods.method import Option

__all__ = ["HOSTS", "Machines", "Option", "Plan", "plan", "write_plan"]
