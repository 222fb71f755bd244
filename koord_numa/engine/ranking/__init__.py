"""Choice of the best node for a pod from upper bounds on scores, without evaluating every node."""
