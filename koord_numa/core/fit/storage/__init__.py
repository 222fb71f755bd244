"""The predicates on volumes: kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits."""
