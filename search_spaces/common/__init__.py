"""The bottom layer that all packages share: errors, complete writes, plug-ins, pauses. It knows nothing of networks."""
