"""Queue of pending pods by request class: active, backing off or unschedulable; nominated nodes; and events that wake pods."""
