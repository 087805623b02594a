"""Tabular benchmarks: measured architectures of a search space, looked up instead of trained."""

from nas.benchmarks.fetch import fetch as fetch
from nas.benchmarks.importers import import_file
from nas.benchmarks.loading import BenchmarkInfo, list_benchmarks, load_benchmark
from nas.benchmarks.table import Benchmark

__all__ = [
    "Benchmark",
    "BenchmarkInfo",
    "fetch",
    "import_file",
    "list_benchmarks",
    "load_benchmark",
]
