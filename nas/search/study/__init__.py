"""The study of a search: what is stored, how it is written and shared, and how it is read again."""
