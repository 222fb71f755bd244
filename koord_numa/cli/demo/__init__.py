"""The demo: an embedded API server with simulated machines, the operator as a child process, and the pods that fill it."""
