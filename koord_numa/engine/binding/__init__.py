"""Binding cycle, from a placement to a bound pod: Reserve, PreBind, Bind, PostBind."""
