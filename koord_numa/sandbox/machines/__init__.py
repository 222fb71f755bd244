"""Simulated machines: nodes that publish themselves to the embedded API server and act on the pods bound to them, forgiving nothing."""
