"""Measures one network: trained accuracy, latency, peak memory, zero-cost proxies, parameters and
FLOPs.
"""
