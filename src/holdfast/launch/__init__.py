"""One recipe, translated for another engine: TRL, or verl.

`plan("verl", config, Machines(gpus=8))` is everything the host needs, as a value: its options, the files to write and
what could not be carried over. `write_plan` puts it into a folder. Nothing here imports a host or trains.

A translation keeps the meaning or refuses. Each host's module accounts for every setting of the schema:

    OPTIONS   the setting becomes options of the host; each option names the settings it comes from
    others    it is in a file: the script, the recipe beside it, the agent loop's settings, the questions
    NOTED     it has no meaning there; a value of your own is reported, not dropped in silence
    REFUSED   the host has no such thing; a value other than the default is an error that names the nearest one
"""

from holdfast.launch.plan import HOSTS, Machines, Option, Plan, plan, write_plan

__all__ = ["HOSTS", "Machines", "Option", "Plan", "plan", "write_plan"]
