"""What each part of the RLM adds: its inputs, its in-context layers, and the form of its output."""
