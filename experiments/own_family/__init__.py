"""A family that no checkpoint has seen, written as a user writes one: its space, and what trains its networks."""
