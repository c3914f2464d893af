"""One recipe, translated for another engine: TRL, or verl.

`plan("verl", config, Machines(gpus=8))` is everything the host needs, as a value: its options, the files to write and
what could not be carried over. `write_plan` puts it into a folder. Nothing here imports a host or trains.

A translation keeps the meaning or refuses. Each host's module accounts for every setting of the schema:

    OPTIONS   the setting becomes options of the host; each option names the settings it comes from
    RECIPE    (TRL) the generated script reads it from the recipe when it starts
    NOTED     it has no meaning there; a value of your own is reported, not dropped in silence
    REFUSED   the host has no such thing; a value other than the default is an error that names the nearest one
"""

from holdfast.launch.plan import Machines, Option, Plan, plan, write_plan

__all__ = ["Machines", "Option", "Plan", "plan", "write_plan"]
