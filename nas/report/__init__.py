"""Figures, drawings of networks, and report pages of searches."""
