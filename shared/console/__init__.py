"""The console: what happens, what needs a person, and the decisions, in a browser.

`app` routes a request, `access` and `forms` say who may do what, `pages` look, `actions` decide, `rendering` writes
HTML from `templates/`; `charts` and `picture` draw. All of it is over `shared.review`, as the command line is.
"""
