"""The process: its tasks, informers, metrics and served pages. A composition root: it may import every layer below."""
