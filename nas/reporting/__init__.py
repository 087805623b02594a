"""Figures, drawings of networks, and pages about finished searches."""
