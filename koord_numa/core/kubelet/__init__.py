"""A model of the kubelet's resource managers: would this kubelet admit this pod, and what would it hold?"""
