"""Helpers for all packages, independent of networks: errors, atomic writes, plug-ins, garbage
collection.
"""
