"""OpenEnv: the tasks of a recipe behind its server, and as sessions in the process of a trainer.

* `server.py`: an `Environment`, for clients in other processes.
* `sessions.py`: a `ResourceSessionFactory`, for TRL's AsyncGRPO (`HarnessRolloutWorker`) and OpenEnv's own rollouts.
"""
