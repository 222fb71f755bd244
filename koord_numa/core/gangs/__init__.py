"""Gang scheduling: the model of groups, and decisions about all members of a group. Pure."""
