"""The compiler: networks as graphs without weights.

`graph` has the nodes and shapes, `builder` builds graphs, `ops` has the facts about operators, one
file per family, `fusion` and `costs` work on whole graphs. `text`, `onnx` and `pytorch` read graphs
and write them.
"""
