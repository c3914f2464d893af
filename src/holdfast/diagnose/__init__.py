"""Why a run fails: logs of any trainer, rules that look at them, findings and the report. No torch.

Read first: `diagnose.py`, `rules/rule.py`, `readers/find.py`, `finding.py`.

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log

diagnose(read_log("runs/quickstart")).findings
"""
