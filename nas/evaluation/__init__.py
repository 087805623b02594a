"""Measurements of one network: trained accuracy, latency, memory, zero-cost proxies, exact costs."""
