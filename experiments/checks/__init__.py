"""Checks of what the project promises: spaces, exact costs, damaged files, killed searches,
proxies.
"""
