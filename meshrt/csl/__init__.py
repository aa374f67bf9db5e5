"""An interpreter of CSL, the language of wafer-scale engines: a subset, not made or endorsed by Cerebras (docs/csl.md).

lexer, parser, nodes: text to a tree. types, values: what an expression is. scope, expressions, statements, builtins:
what is known before the run is computed (per tile, with its parameters), the rest is written as Python. layout: the
rectangle, routes. image: what tiles of equal parameters share. core, vectors, operations, router, wafer: the run.
"""
