"""
Repacking of the CPUs of one node (RebindResource): the moves of pods, and an order of the moves in which no pod is
worse off.
"""
