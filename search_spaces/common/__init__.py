"""Helpers without knowledge of networks, which all packages share: errors, complete writes, plug-ins."""
