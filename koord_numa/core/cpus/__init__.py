"""Picking logical CPUs by Koordinator's orchestration policies."""
