"""The endpoints of the API, a folder each; one that is a single handler is a module.

A folder has the `route`, the types of its bodies (`schema`) and replies (`reply_schema`), and where
it generates the body as a `GenerationSpec` (`spec`). `answer` lets the engine generate what a route
has made ready; `plain` is the kind of route that all of them are. No endpoint imports another.
"""
