"""The compact text of a graph: repeated blocks are functions, lines stand in canonical order, the
syntax is ONNX's.
"""

from search_spaces.ir.text.functions import compact
from search_spaces.ir.text.program import expand
from search_spaces.ir.text.syntax import TEXT_VERSION, fingerprint, read, write

__all__ = ["TEXT_VERSION", "compact", "expand", "fingerprint", "read", "write"]
