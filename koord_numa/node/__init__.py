"""
The node agent: publishes a node's topology and its kubelet's options, compares decided with effective CPUs, applies cpusets on request.

Runs as a DaemonSet in little memory: modules import what they need when they need it, and nothing here imports the engine.
"""
