"""Reports of results: one style, one set of components, and the page of a release.

`pages` holds the templates' common frame. `results` reads the folder of a release, `figures` places
the marks of its charts, and `release` makes its page. Pages load nothing, need no JavaScript, and
follow a dark screen. Everything on the page of a release is released or public.
"""
