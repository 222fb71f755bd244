"""Picking logical CPUs: Koordinator's orchestration policies and the kubelet's own static policy."""
