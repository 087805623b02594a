"""The bottom layer: errors, complete writes and plug-ins, which all packages share. It knows nothing of networks."""
