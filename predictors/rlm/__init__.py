"""The regression language model: lines of text, encoder, in-context examples, digits."""
