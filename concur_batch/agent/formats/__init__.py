"""The action formats: one module each, over the common ground in `action`."""
