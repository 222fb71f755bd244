"""The scheduling engine: cluster state, queue and the decide-assume-bind loop. No HTTP, no Kopf."""
