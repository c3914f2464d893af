"""Codes of `holdfast diagnose` that say how a run was set up. The others say what its model did, which no test that
samples can know."""

SETTING_UP = {
    *("GRD002", "LRN001", "MSK001", "OFP001", "PEN001", "RET001"),
    *("SMP001", "SMP002", "SMP003", "TOL002"),
}
