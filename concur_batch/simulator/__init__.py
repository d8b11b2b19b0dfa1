"""A model of an SGLang-like engine: a pure core (`engine` of `scheduler`, `radix`, `cost`; `script`) and its server."""
