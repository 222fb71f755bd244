"""Pick logical CPUs by Koordinator's orchestration policies."""
