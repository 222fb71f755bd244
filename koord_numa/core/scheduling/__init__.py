"""One pod and one moment of the cluster: which nodes take the pod, how good each is, and what the pod gets there. Pure."""
