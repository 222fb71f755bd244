"""Groups of pods that are placed together or not at all: what a group is, and where its members go."""
