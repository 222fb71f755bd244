"""The demo: an embedded API server with simulated machines, the operator as a child process, and the submitted pods."""
