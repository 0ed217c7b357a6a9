"""A database cluster of our own: directory, server process, sessions, and a role without rights.

``managed`` adds states, settings and rights; nothing else imports it.
"""
