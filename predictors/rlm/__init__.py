"""The regression language model: lines of text, encoder, examples in context, and digits."""
