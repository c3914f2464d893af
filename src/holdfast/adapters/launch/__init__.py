"""One recipe, translated for another trainer: TRL or verl.

`plan("verl", config, Machines(gpus=8))` is a value with everything the host needs: its options, the files to write and
notes on what differs. `write_plan` writes it into a folder. Nothing here imports a host or trains.

A translation keeps the meaning or refuses. A setting is in the files that are written, or in the host's module here
(`trl_options.py`, `verl_options.py`):

    options     the setting becomes options of the host; each option names the settings it comes from
    FATES       Noted: it has no meaning in the host; a value other than the default is reported
                Refused: the host has nothing like it; a value other than the default is an error
    problems    combinations that the host cannot do; `differences` what it does differently

`settings` of the host in `holdfast/hosts/` names the options that have the value of a setting as it is.

What is written comes from the files of `templates/`.
"""

from holdfast.adapters.launch.plan import plan, write_plan
from holdfast.adapters.launch.recipe import Machines, Plan

__all__ = ["Machines", "Plan", "plan", "write_plan"]
