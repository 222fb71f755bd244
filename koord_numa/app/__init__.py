"""
The process: its tasks, informers, metrics and HTTP endpoints. A composition root: it may import every layer below.
"""
