"""
The node agent: publishes topology and kubelet options, compares allocated with effective CPUs, applies cpusets if enabled.

Runs as a DaemonSet with little memory: large modules are imported on first use, and nothing here imports the engine.
"""
