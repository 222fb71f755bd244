"""What pods that have left unseen may change for a pod that is decided on."""
