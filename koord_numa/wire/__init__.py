"""JSON to core types and back: the only place with annotation, label and API group names."""
