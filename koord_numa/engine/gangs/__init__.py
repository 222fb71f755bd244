"""Groups of pods in the scheduler: what is known of them, the trial of a group, and its cycle."""
